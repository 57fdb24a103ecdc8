"""Where sentences end: 200 cases and more in ten languages and some others. A bar stands where a
sentence ends; behind it, the white space is the sentence's before it. § is a placeholder."""

import pytest

from fairseq_ext.text.splitter import PLACEHOLDER, splitter

CASES = {
    "de": """
„Ein Hund rennt am Strand.“ |Eine Frau sitzt auf einer Bank.
»Ein Hund rennt.« |Eine Frau sitzt da.
‚Ein Hund rennt.‘ |Dann kam er.
Der Hund rennt. |– Eine Frau sitzt da.
Wir lachen. |§ Ein Hund kommt.
Wir spielen Fußball. |§ sitzt da.
Der Hund rennt. |§ zeigt es.
Dr. med. Müller kommt. |Er ist da.
Vgl. S. 12. |Danach geht es weiter.
Der 3. Mann kam. |Er ging.
Am 3. Mai kam er z.B. nach Hause! |Wer?
Ist das neu? |„Ja.“ |„Nein“, sagt er.
Der Hund bellt.|Die Katze nicht. |Node.js geht.
Er sagte: „Komm her!“ |Dann ging er.
Er rief (laut!) und ging.
(Das war gestern.) |Heute nicht.
(Sie rennt gern. |Er schläft.) |Heute nicht.
Sie (er schläft. Gut.) rennt.
Er sagte: „Ich gehe. |Du bleibst hier.“ |Dann ging er.
»Ich gehe jetzt! |Du bleibst!«, sagte er. |Gut.
„Ich gehe. Du bleibst“, sagte er.
Siehe Kap. 3. |Dort steht es.
Wir warten… |Dann gehen wir.
Er kam usw. |Dann ging er.
Das ist Nr. 5 bzw. Nr. 6.
Ludwig XIV. war König.
z. B. ein Hund
d. h. Hunde bellen. |Ja.
Die GmbH & Co. KG verkauft. |Sie kauft.
Nr. § ist da. |Er heißt §. |Er rennt.
Um 8.30 Uhr. |Um 9 Uhr.
J. R. R. Tolkien schrieb. |Er las.
Öffnen Sie die Datei config.txt. |Speichern Sie.
Im 2. Stock wohnt er. |Im 3. auch.
Er schläft. |12 Hunde kommen.
Es gibt Abs. 3 und Nr. 5. |Mehr nicht.
Das war 2020. |Heute nicht.
Er kommt am Mo. oder Di. zu uns.
Sie fragte: „Wer ist da?“ |Niemand antwortete.
Was?! |Das kann nicht sein.
Halt! |Halt! |Halt!
Das kostet 3.50 Euro. |Gut.
Er ist Prof. Dr. Schmidt.
Hr. Maier kommt. |Fr. Maier auch.
Die Firma Meyer e. V. ist da.
Es regnet (seit gestern). |Wir bleiben.
Er mag Hunde, Katzen etc. |Sie nicht.
Siehe Abb. 4. |Sie zeigt es.
Das ist das 1. Mal. |Gut.
Tel. 030 123. |Fax nein.
Die Klasse System.Windows.Forms ist da. |Sie läuft.
Ab .NET 4 geht es. |ASP.NET auch.
Im Feld Name (z. B. „Hund“) steht er.
Am Montag, 19. Oktober, kommt er. |Dann nicht.
Das ist ein „Hallo Welt!“-Beispiel. |Mehr nicht.
Er sagte „Ja.“ und ging.
Kapitel 4. Kompatibilitätsfragen
Siehe Kapitel 4. |Dort steht es.
Auf Red-Hat-/Slackware-/... Systemen läuft es. |Gut.
""",
    "en": """
Mr. Smith went to Washington. |He liked it.
He said "Stop." |She left.
The U.S. Army came. |It won.
See Fig. 3. |It shows a dog.
I paid $3.50. |You paid 4.
Is it? |Yes!
“Come here.” |He came.
e.g. dogs and i.e. cats. |Yes.
It ended at 5 p.m. |She left.
It is 5 a.m. now.
Wait... |He came.
He works at Yahoo! |She too.
(He came.) |She left.
Dr. Jones and Mrs. Brown met. |They talked.
Open the file. |§ shows it.
The price is approx. 5 dollars.
J. R. R. Tolkien wrote it. |We read it.
She asked, "Why?" |He knew.
No. 5 is alive. |No. 6 is not.
The end. |– Not yet.
He left in 2020. |We stayed.
Inc. and Ltd. are companies. |So is Co.
It works. |10 dogs came.
""",
    "fr": """
M. Dupont est là. |Il mange.
« Bonjour. » |Il sort.
Il dit : « Viens ! » |Puis il sort.
Est-ce vrai ? |Oui.
Le n° 5, art. 3, p. 12. |Voilà.
Il est 20 h. |Elle dort.
Mme Martin arrive. |Elle rit.
Le chien court. |§ dort.
Il pleut… |Nous restons.
Non ! |Jamais.
C'est M. Durand. |Il part.
Dr. Petit est ici.
(Il pleut.) |Nous restons.
Il a 3,5 ans. |Elle aussi.
Voir la fig. 4. |Elle est claire.
20 % d'ici demain. |Bien.
“Oui.” |Elle part.
Où est-il ? |Là-bas !
Le chat etc. |Puis rien.
""",
    "es": """
El Sr. García llegó. |¿Quién es? |¡Hola! |Bien.
La Dra. López, p. ej., vino. |Se fue.
«Hola.» |Salió.
Son las 5. |Vamos.
El perro corre. |§ duerme.
¿Es verdad? |Sí.
Véase la pág. 3. |Ahí está.
(Llueve.) |Nos quedamos.
Ya viene… |Espera.
“Sí.” |Se fue.
Cuesta 3,50 euros. |Bien.
¡No! |Nunca.
El n.º 5 ganó. |El 6 no.
D. Juan habla. |Escuchan.
Llegó en 2020. |Se quedó.
La Sra. Pérez come. |Bebe.
Hay perros, gatos, etc. |Nada más.
""",
    "it": """
Il sig. Rossi è qui. |Mangia.
Vedi pag. 3. |Ecco.
Che ora è? |Sono le tre.
«Ciao.» |Esce.
Il cane corre. |§ dorme.
Piove… |Restiamo.
(Piove.) |Restiamo.
Il dott. Bianchi parla. |Ascoltano.
Costa 3,50 euro. |Bene.
No! |Mai.
“Sì.” |Va via.
Arriva nel 2020. |Resta.
Cani, gatti, ecc. |Basta.
È il n. 5. |Vince.
""",
    "ru": """
Г-н Иванов пришёл. |Он ушёл.
Он родился в 1990 г. в Москве. |Потом уехал.
«Привет.» |Она ушла.
А. С. Пушкин писал. |Да.
и т. д. |Потом он ушёл.
См. рис. 5. |Там собака.
Где он? |Там!
Собака бежит. |§ спит.
Идёт дождь… |Мы ждём.
(Идёт дождь.) |Мы ждём.
Это стоит 3,5 рубля. |Хорошо.
Нет! |Никогда.
Он пришёл в 2020. |Она нет.
В 5 ч. утра он встал.
""",
    "pl": """
Dr Nowak przyszedł. |Wyszedł.
Np. psy i koty. |Tak.
Ul. Długa 5. |Tam mieszka.
W 1990 r. urodził się. |Potem wyjechał.
„Cześć.” |Wyszła.
Kto to? |Ja.
Pies biegnie. |§ śpi.
Pada… |Czekamy.
(Pada.) |Czekamy.
To kosztuje 3,5 zł. |Dobrze.
Nie! |Nigdy.
Prof. Kowalski mówi. |Słuchają.
Psy, koty itp. |Nic więcej.
Zob. rys. 4. |Tam jest.
""",
    "zh": """
他来了。|她走了！|谁？|好
他说：“你好。”|然后走了。
“来。”|他说。
这是3.5元。|好的。
狗在跑。|§在睡。
下雨了……我们等。
真的吗？|是的。
他（昨天）来了。|她走了。
「你好。」|他走了。
天气好；我们去。
""",
    "ja": """
これはペンです。|あれは本です。
「来て。」|彼は言った。
本当？|はい！|そう
犬が走る。|§は寝る。
3.5円です。|はい。
（雨です。）|待ちます。
何ですか。|猫です。
行こう！|早く。
彼は「はい」と言った。|終わり。
""",
    "hi": """
वह आया। |वह गया। |कौन?
यह राम है॥ |वह श्याम है।
क्या यह सच है? |हाँ।
कुत्ता दौड़ता है। |§ सोता है।
रुको! |वह आया।
यह 3.5 रुपये है। |ठीक है।
वह घर गया। |फिर सो गया।
नहीं। |कभी नहीं।
""",
    "ar": """
جاء الرجل. |ذهبت المرأة؟ |نعم!
هل هذا صحيح؟ |نعم.
الكلب يجري. |القطة تنام.
لا! |أبداً.
السعر 3.5 دولار. |حسناً.
ماذا؟ |لا شيء.
ذهب الولد. |عاد مساءً.
""",
    "ur": """
وہ آیا۔ |وہ گیا۔ |کون ہے؟ |میں۔
کیا یہ سچ ہے؟ |ہاں۔
نہیں! |کبھی نہیں۔
کتا دوڑتا ہے۔ |بلی سوتی ہے۔
یہ 3.5 روپے ہے۔ |ٹھیک۔
""",
    "cs": """
Dne 3. května přišel. |Odešel.
Např. psi. |Ano.
„Ahoj.“ |Odešel.
To je 5. patro. |Dobře.
Kde je? |Tam!
""",
    "nl": """
Dhr. Jansen kwam. |Hij ging.
Bijv. honden. |Ja.
Waar is hij? |Daar!
Honden enz. |Klaar.
""",
    "pt": """
O Sr. Silva chegou. |Saiu.
A Dra. Ana, p. ex., veio. |Foi.
Onde está? |Ali!
""",
    "tr": """
Dr. Ali geldi. |Gitti.
3. kat burada. |Orası değil.
Nerede? |Orada!
""",
    "ko": "그는 왔다. |그녀는 갔다. |누구? |나.",
    "xx": "Foo bar. |Baz qux.",
}
LINES = [(lang, line) for lang, lines in CASES.items() for line in lines.strip().splitlines()]


@pytest.mark.parametrize(("language", "line"), LINES)
def test_sentence_ends(language, line):
    text = line.replace("§", PLACEHOLDER)
    plain = text.replace("|", "")
    ends = splitter(language)(plain)
    assert "|".join(plain[a:b] for a, b in zip([0, *ends], ends, strict=False)) == text


def test_there_are_200_cases_in_ten_languages():
    assert len(LINES) >= 200 and sum(len(v.strip().splitlines()) > 7 for v in CASES.values()) >= 10


def test_no_character_is_lost_where_a_long_line_is_read_in_parts():
    line = "Ein Hund rennt. " * 3000
    assert splitter("de")(line) == list(range(16, len(line) + 1, 16))
    letters = "x" * 300_000
    assert splitter("de")(letters) == [300_000]
