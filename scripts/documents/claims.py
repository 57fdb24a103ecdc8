"""stub"""
def claims(paper: str) -> str:
    return ""
