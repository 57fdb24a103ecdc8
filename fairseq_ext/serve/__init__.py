"""`python -m fairseq_ext.serve`: an engine (fairseq_ext/engine/) behind HTTP, with a page for people.

| file | what is in it |
| --- | --- |
| __main__.py | the command: flags, the socket, signals |
| app.py | the application and its routes |
| glossary_routes.py | the routes of kept glossaries |
| service.py | what the routes share |
| models.py | one model that stays, or those of a folder |
| pivot.py | two models one behind the other |
| records.py | requests as JSON, and answers |
| waiting.py | answers that are waited for: deadlines, clients that go, event streams |
| guard.py | API keys, and the largest body |
| glossaries.py | glossaries that are kept on disk |
| libretranslate.py | LibreTranslate's API |
| metrics.py | counts and histograms for Prometheus |
| page.html | the page |
"""
