"""The general words of the demo corpus: nouns, verbs, adjectives, adverbials and names, all
written for this project.

Tables are plain text, one entry a line. `/` separates English alternatives, the preferred one
first. A translation that depends on the domain is written `tech: ... ; clinic: ...`. The words of
one domain only stand in `domains.py`; the inflected forms are made by `german.py` and `english.py`.

Noun lines read  `German gender plural kind link English`:
    gender  m, f, n, or mw for the weak masculines (den Patienten)
    plural  "-" for mass nouns
    kind    p person, d thing, t text or data, o place, e event, a abstract, i illness, m only as a
            first part; a "+" marks a head of compounds; `d/p` is d in the domain tech, p in clinic
    link    the form it takes as the first part of a compound, "-" if it does not
Verb lines read  `German forms | subject kinds | frame | English`:
    German  infinitive with `|` behind a separable prefix; irregular verbs add 3rd person,
            preterite, participle; `*` marks the auxiliary sein, `sich:` a reflexive verb
    frame   objects, each `case:kinds` (a accusative, d dative) or `preposition+case:kinds`
    English `~` before a particle that may follow the object, `^to` the preposition of the
    dative object with `give him
            the book` possible too, `>to` the same when it is not, `!` no passive
"""

NOUNS = """
Kollege mw Kollegen p - colleague/coworker
Kollegin f Kolleginnen p - colleague/coworker
Leiter m Leiter d+/p+ - tech: conductor/lead ; clinic: director/head
Chef m Chefs p Chef boss/manager
Chefin f Chefinnen p Chef boss/manager
Kunde mw Kunden p Kunden customer/client
Mitarbeiter m Mitarbeiter p+ Mitarbeiter employee/staff member
Mitarbeiterin f Mitarbeiterinnen p+ - employee/staff member
Besucher m Besucher p Besucher visitor/guest
Nachbar mw Nachbarn p - neighbour
Student mw Studenten p Studenten student
Fachfrau f Fachfrauen p - specialist/expert
Berater m Berater p+ Berater adviser/consultant
Helfer m Helfer p+ - helper/assistant
Gruppe f Gruppen p+ Gruppen group/team
Direktorin f Direktorinnen p - director
Bericht m Berichte t+ Berichts report/account
Brief m Briefe t+ Brief letter
Liste f Listen t+ Listen list
Vertrag m Verträge t+ Vertrags contract/agreement
Rechnung f Rechnungen t+ Rechnungs invoice/bill
Antwort f Antworten t+ Antwort answer/reply
Frage f Fragen t+ Frage question
Formular n Formulare t+ Formular form
Anleitung f Anleitungen t+ - manual/guide
Nachricht f Nachrichten t+ Nachrichten message
Tabelle f Tabellen t+ Tabellen table
Plan m Pläne t+ Plan plan/schedule
Unterlage f Unterlagen t+ - document/paper
Vorschlag m Vorschläge t+ - proposal/suggestion
Büro n Büros o+ Büro office
Raum m Räume o+ Raum room
Halle f Hallen o+ Hallen hall
Keller m Keller o+ Keller basement/cellar
Flur m Flure o Flur corridor/hallway
Gebäude n Gebäude o+ Gebäude building
Küche f Küchen o+ Küchen kitchen
Garten m Gärten o Garten garden
Tür f Türen d+ Tür door
Fenster n Fenster d+ Fenster window
Tisch m Tische d+ Tisch table/desk
Schlüssel m Schlüssel d+ Schlüssel key
Koffer m Koffer d+ Koffer suitcase/case
Lampe f Lampen d+ Lampen lamp/light
Schrank m Schränke d+ Schrank cabinet/cupboard
Wagen m Wagen d+ Wagen car/vehicle
Karte f Karten d+ Karten card
Tasche f Taschen d+ Taschen bag
Gespräch n Gespräche e+ Gesprächs conversation/talk
Besprechung f Besprechungen e+ Besprechungs meeting
Schulung f Schulungen e+ Schulungs training course/course
Pause f Pausen e+ Pausen break
Termin m Termine e+ Termin appointment
Arbeit f Arbeiten e+ Arbeits task/job
Kontrolle f Kontrollen e+ Kontroll check/inspection
Lieferung f Lieferungen e+ Liefer delivery
Entscheidung f Entscheidungen a Entscheidungs decision
Problem n Probleme a+ Problem problem/issue
Fehler m Fehler a+ Fehler error/mistake
Grund m Gründe a - reason/cause
Lösung f Lösungen a+ Lösungs solution
Idee f Ideen a Ideen idea
Ergebnis n Ergebnisse a+ Ergebnis result/outcome
Kosten - - m Kosten cost
Sicherheit f - m Sicherheits safety/security
Zeit f - m Zeit time
Personal n - m Personal staff
Qualität f - m Qualitäts quality
Notfall m - m Notfall emergency
"""

VERBS = """
an|rufen ruft rief gerufen | p | a:p | call/phone
zurück|rufen ruft rief gerufen | p | a:p | call~back
ein|laden lädt lud geladen | p | a:p | invite
warten | p | auf+a:pte | wait for
fragen | p | a:p | ask
antworten | p | d:p | answer/reply to
helfen hilft half geholfen | p | d:p | help/assist
danken | p | d:p | thank
vertrauen | p | d:p | trust
zu|hören | p | d:p | listen to
folgen * | p | d:p | follow
widersprechen widerspricht widersprach widersprochen | p | d:p | contradict/disagree with
suchen | p | a:pdto | look for!/search for!
finden findet fand gefunden | p | a:pdta | find
sehen sieht sah gesehen | p | a:pdto | see
brauchen | p | a:pdte | need/require
kennen kennt kannte gekannt | p | a:poa | know!
verstehen versteht verstand verstanden | p | a:pta | understand
vergessen vergisst vergaß vergessen | p | a:dte | forget
prüfen | p | a:dta | check/test
kontrollieren | p | a:dto | check/inspect
öffnen | p | a:dto | open
schließen schließt schloss geschlossen | p | a:do | close/shut
ab|schließen schließt schloss geschlossen | p | a:doe | tech: complete ; clinic: lock
auf|machen | p | a:do | open~up/open
lesen liest las gelesen | p | a:t | read
schreiben schreibt schrieb geschrieben | p | a:t | write
unterschreiben unterschreibt unterschrieb unterschrieben | p | a:t | sign
ab|schicken | p | a:t | send~off/send
aus|drucken | p | a:t | print~out/print
aus|füllen | p | a:t | fill~in/complete
durch|lesen liest las gelesen | p | a:t | read through!
vor|bereiten | p | a:te | prepare
planen | p | a:e | plan
verschieben verschiebt verschob verschoben | p | a:e | postpone/move
ab|sagen | p | a:e | cancel/call~off
an|fangen fängt fing gefangen | p | mit+d:e | begin!/start!
auf|hören | p | mit+d:e | stop!
teil|nehmen nimmt nahm genommen | p | an+d:e | take part in/attend
statt|finden findet fand gefunden | e | | take place
enden | e | | end/finish
beginnen beginnt begann begonnen | e | | begin/start
lösen | p | a:a | solve/resolve
besprechen bespricht besprach besprochen | p | a:tea | discuss/talk about!
nach|denken denkt dachte gedacht | p | über+a:ta | think about
sich:beschweren | p | über+a:tae | complain about
bemerken | p | a:pdai | notice
entdecken | p | a:dtai | discover/find
erklären | p | d:p a:ta | explain>to
zeigen | p | d:p a:dto | show^to
geben gibt gab gegeben | p | d:p a:dt | give^to
schicken | p | d:p a:t | send^to
bringen bringt brachte gebracht | p | d:p a:dt | bring^to
empfehlen empfiehlt empfahl empfohlen | p | d:p a:deo | recommend>to
leihen leiht lieh geliehen | p | d:p a:d | lend^to
vor|lesen liest las gelesen | p | d:p a:t | read>to
kaufen | p | a:d | buy/purchase
bestellen | p | a:d | order
bezahlen | p | a:td | pay for!
holen | p | a:dtp | fetch/get
mit|nehmen nimmt nahm genommen | p | a:pdt | take~along
mit|bringen bringt brachte gebracht | p | a:pdt | bring~along
weg|werfen wirft warf geworfen | p | a:dt | throw~away/discard
auf|räumen | p | a:o | tidy~up/clean~up
betreten betritt betrat betreten | p | a:o | enter
verlassen verlässt verließ verlassen | p | a:o | leave
an|kommen kommt kam gekommen * | p | | arrive
zurück|kommen kommt kam gekommen * | p | | come back/return
weg|gehen geht ging gegangen * | p | | go away/leave
auf|stehen steht stand gestanden * | p | | get up/stand up
ein|schlafen schläft schlief geschlafen * | p | | fall asleep
schlafen schläft schlief geschlafen | p | | sleep
arbeiten | p | | work
lachen | p | | laugh
kommen kommt kam gekommen * | p | | come
bleiben bleibt blieb geblieben * | p | | stay/remain
"""

# verbs that take a clause: `German forms | English`
CLAUSE_VERBS = """
sagen | say
glauben | think/believe
wissen weiß wusste gewusst | know
hoffen | hope
vermuten | suspect/assume
bestätigen | confirm
berichten | report
mit|teilen | announce
behaupten | claim
fürchten | fear
fest|stellen | find/notice
bezweifeln | doubt
"""

# verbs that take an infinitive with zu: `German forms | English`, all `to` infinitives in English
ZU_VERBS = """
versuchen | try/attempt
beschließen beschließt beschloss beschlossen | decide
vor|haben hat hatte gehabt | plan/intend
an|fangen fängt fing gefangen | begin/start
versprechen verspricht versprach versprochen | promise
vergessen vergisst vergaß vergessen | forget
hoffen | hope
"""

# `German | kinds | English`
ADJECTIVES = """
neu | pdtoeai | new
alt | pdto | old
groß | dtoea | large/big
klein | pdtoea | small/little
wichtig | ptea | important
dringend | tea | urgent
lang | te | long
kurz | te | short/brief
schwer | dai | heavy/serious
leicht | dai | light/slight
einfach | dta | simple/easy
schwierig | pea | difficult/hard
jung | p | young
erfahren | p | experienced
freundlich | p | friendly/kind
müd(e) | p | tired
nervös | p | nervous/anxious
zuständig | p | responsible
fleißig | p | hard-working/diligent
zuverlässig | pd | reliable/dependable
defekt | d | defective/broken
kaputt | d | broken
teu(e)r | de | expensive/costly
billig | d | cheap/inexpensive
modern | do | modern
leer | dot | empty
schmutzig | do | dirty
sauber | do | clean
hell | do | bright
grün | d | green
rot | d | red
blau | d | blue
schwarz | d | black
ruhig | po | quiet/calm
vollständig | t | complete/full
fehlend | dt | missing
ungenau | ta | inaccurate/imprecise
aktuell | ta | current/latest
jährlich | te | annual/yearly
geplant | e | planned/scheduled
unerwartet | eai | unexpected/surprising
möglich | ea | possible
merkwürdig | pai | strange/odd
bekannt | pai | well-known/familiar
nächst | e | next
letzt | et | last/final
besonder | a | special/particular
gemeinsam | ea | joint/shared
"""

# `German | tense (any, past, future) | English`
TIMES = """
heute | any | today
gestern | past | yesterday
vorgestern | past | the day before yesterday
morgen | future | tomorrow
übermorgen | future | the day after tomorrow
am Abend | any | in the evening
am Morgen | any | in the morning
am Nachmittag | any | in the afternoon
heute Morgen | any | this morning
heute Abend | future | tonight/this evening
nächste Woche | future | next week
nächsten Monat | future | next month
letzte Woche | past | last week
letzten Sommer | past | last summer
jeden Tag | any | every day/daily
jeden Montag | any | every Monday
oft | any | often/frequently
manchmal | any | sometimes/at times
immer | any | always
sofort | any | immediately/at once
bald | future | soon/shortly
später | any | later
gerade | any | right now/at the moment
nachts | any | at night
am Wochenende | any | at the weekend/on the weekend
"""
WEEKDAYS = {
    "Montag": "Monday",
    "Dienstag": "Tuesday",
    "Mittwoch": "Wednesday",
    "Donnerstag": "Thursday",
    "Freitag": "Friday",
    "Samstag": "Saturday",
    "Sonntag": "Sunday",
}
MONTHS = {
    "Januar": "January",
    "Februar": "February",
    "März": "March",
    "April": "April",
    "Mai": "May",
    "Juni": "June",
    "Juli": "July",
    "August": "August",
    "September": "September",
    "Oktober": "October",
    "November": "November",
    "Dezember": "December",
}

MANNERS = """
schnell | quickly/fast
langsam | slowly
sorgfältig | carefully/thoroughly
genau | precisely/exactly
ruhig | calmly/quietly
gemeinsam | together/jointly
allein | alone
gründlich | thoroughly
heimlich | secretly
höflich | politely
ohne Hilfe | without help/unaided
mit großer Mühe | with great effort/with great difficulty
zum ersten Mal | for the first time
noch einmal | once more/again
wie geplant | as planned
mit der Hand | by hand/manually
"""

# sentence adverbs; those with "-" as an alternative are sometimes left out in the English
PARTICLES = """
leider | unfortunately/sadly
wahrscheinlich | probably/presumably
offenbar | apparently/evidently
natürlich | of course/naturally
eigentlich | actually/-
wohl | probably/-
vielleicht | perhaps/maybe
tatsächlich | indeed/actually
endlich | finally/at last
trotzdem | nevertheless/still
deshalb | therefore/for this reason
zum Glück | fortunately/luckily
"""

# `German | case | kinds | English`
PREPOSITIONS = """
mit | d | pdt | with/together with
ohne | a | pdt | without
für | a | pe | for
wegen | g | aei | because of/due to
trotz | g | aei | despite/in spite of
nach | d | e | after/following
vor | d | e | before/prior to
während | g | e | during
in | d | o | in
vor | d | o | in front of/outside
neben | d | od | next to/beside
hinter | d | o | behind
"""

# `German | tenses that fit | English`
SUBJUNCTIONS = """
weil | any | because/since
obwohl | any | although/even though
wenn | pres | if/when
als | past | when/as
bevor | any | before
nachdem | past | after
während | any | while/whereas
damit | pres | so that
sobald | pres | as soon as/once
falls | pres | if/in case
da | any | as/since
bis | pres | until/till
"""
COORDINATIONS = """
und | and
aber | but/yet
denn | for/because
oder | or
und | , and
doch | but/however,
"""

FIRST_NAMES = """
Anna Paul Maria Jonas Lena Felix Clara Moritz Sophie Emil Johanna Anton Greta Oskar Ida Jakob Frieda
Leo Marlene Karl Helene Theo Charlotte Bruno Martha Hannes Luise Konrad Nina Erik Paula Simon Judith
David Katrin Stefan Birgit Tobias Ursula Martin Sabine Peter Renate Holger Silke Uwe Tanja Bernd
Heike Ralf Antje Dirk Gesa Malte Wiebke Yusuf Aylin Mehmet Elif Piotr Agata Marek Irina Dmitri Olga
Luca Chiara Marco Giulia Pedro Lucia Noah Mila Ben Emma
""".split()
SURNAME_STEMS = """
Berg Feld Stein Wald Bach Holz Eich Birken Linden Hof Kirch Neu Alten Ober Nieder Hoch Rosen
Sommer Winter Kalten Schön Lauter Stern Gold Silber Falken Hasen Rehn Wolfs Adler Brunnen Mühl
Sand Heiden Moos Wiesen
""".split()
SURNAME_ENDS = (
    "mann hofer bacher berger felder eder huber brand thal rieder meier dorf wein ner".split()
)
SURNAMES = """
Keller Brandt Lindner Vogt Kurz Lang Hartung Seidel Ziegler Pohl Kramer Ernst Busch Horn Arndt Thiel
Ritter Peters Jansen Petersen Albers Kowalski Nowak Yilmaz Demir Rossi Novak Horvat Dubois Larsen
""".split()
PLACE_STEMS = (
    "Grün Alt Neu Ober Unter Linden Eichen Wald Stein Rot Weiß Schwarz Königs Mühl Hirsch Fisch"
).split()
PLACE_ENDS = "stadt dorf berg feld hausen heim burg bach furt see au ingen".split()
CITIES = {
    "Hamburg": "Hamburg",
    "Berlin": "Berlin",
    "München": "Munich",
    "Köln": "Cologne",
    "Wien": "Vienna",
    "Nürnberg": "Nuremberg",
    "Dresden": "Dresden",
    "Genf": "Geneva",
    "Prag": "Prague",
    "Rom": "Rome",
    "Hannover": "Hanover",
    "Leipzig": "Leipzig",
    "Basel": "Basel",
    "Warschau": "Warsaw",
    "Mailand": "Milan",
}
NUMBER_WORDS = {
    "zwei": "two",
    "drei": "three",
    "vier": "four",
    "fünf": "five",
    "sechs": "six",
    "sieben": "seven",
    "acht": "eight",
    "neun": "nine",
    "zehn": "ten",
    "elf": "eleven",
    "zwölf": "twelve",
}
