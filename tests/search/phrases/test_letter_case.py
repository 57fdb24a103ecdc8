"""A term takes the case of the words that it replaces; a word with a case of its own keeps it."""

import pytest

from fairseq_ext.core.words import has_own_case
from fairseq_ext.search.phrases.letter_case import fitted, keeps_case


@pytest.mark.parametrize(
    ("term", "draft", "displaced", "output"),
    [
        ("Customer", "A client pays.", "client", "A customer pays."),
        ("Customer", "Clients pay.", "Clients", "Customer pay."),
        ("Sales Order", "Bids end. Offers stay.", "Offers", "Bids end. Sales order stay."),
        ("Sales order", "Open the offer.", "offer", "Open the sales order."),
        ("customer", "Open the Client page.", "Client", "Open the Customer page."),
        ("sales order", "Open the Offer page.", "Offer", "Open the Sales Order page."),
        ("Sales order", "Open the Offer page.", "Offer", "Open the Sales order page."),
        ("sales order", "Open Bid Offers now.", "Bid Offers", "Open Sales Order now."),
        ("Sales Order", "Open Bid offers now.", "Bid offers", "Open Sales order now."),
        ("notice of sale", "See Bids And Offers.", "Bids And Offers", "See Notice of Sale."),
        ("API", "The interface is new.", "interface", "The API is new."),
        ("API permissions", "A right is new.", "right", "A API permissions is new."),
        ("FastTab", "A tab is new.", "tab", "A FastTab is new."),
        ("iPad", "Tablets are new.", "Tablets", "iPad are new."),
        ("X-Ray", "A scan is new.", "scan", "A X-ray is new."),
        ("E-Mail", "A letter is new.", "letter", "A e-mail is new."),
        ("B2B Customer", "A client pays.", "client", "A B2B customer pays."),
        ("Customer", "• Clients pay.", "Clients", "• Customer pay."),
        ("Customer", '"Clients" pay.', "Clients", '"Customer" pay.'),
        ("Customer", "THE CLIENT PAYS", "CLIENT", "THE CUSTOMER PAYS"),
        ("customer", "The USA pays.", "USA", "The Customer pays."),
    ],
)
def test_a_placed_term_takes_the_case_of_what_it_displaces(term, draft, displaced, output):
    start = draft.index(displaced)
    span = start, start + len(displaced)
    cased = fitted(term, draft, span)
    assert draft[: span[0]] + cased + draft[span[1] :] == output


def test_an_inserted_term_has_the_case_of_running_text():
    assert fitted("Sales Order", "A client pays.", (8, 8)) == "sales order"


def test_where_nouns_have_capitals_the_model_decides_what_is_a_noun():
    assert fitted("Kunde", "Der Käufer zahlt.", (4, 10), "de") == "Kunde"
    assert fitted("Offen", "Er ist auf.", (7, 10), "de") == "Offen"
    assert fitted("offen", "Auf ist er.", (0, 3), "de") == "Offen"
    assert fitted("Kunde", "Der zahlt.", (3, 3), "de") == "Kunde"


def test_a_capital_inside_capitals_only_and_digits_are_a_case_of_its_own():
    assert all(map(has_own_case, "API FastTab iPad B2B ISO9001 eBay".split()))
    assert not any(map(has_own_case, "Customer customer 365 A Übersicht".split()))
    assert keeps_case("API") and keeps_case("vitamin C") is False and not keeps_case("API user")
