"""Function words: determiners, prepositions, conjunctions, pronouns, auxiliaries and particles.

A glossary term never takes their place, as they do not translate its source term by themselves.
And the stems of English words, by which a term is recognised in another form.
"""

from __future__ import annotations

import functools

ENDINGS = ("ing", "ed", "es", "s", "e")  # of English inflection
FUNCTION_WORDS = {
    "en": frozenset(
        # determiners and quantifiers
        "a an the this that these those each every either neither some any no all both few "
        "several such another other my your his her its our their whose which what "
        # pronouns
        "i you he she it we they me him us them mine yours hers ours theirs myself yourself "
        "himself herself itself ourselves yourselves themselves who whom someone somebody "
        "something anyone anybody anything everyone everybody everything nobody nothing none "
        "one oneself "
        # prepositions
        "about above across after against along alongside amid among around as at atop before "
        "behind below beneath beside besides between beyond by despite down during except for "
        "from in inside into like near of off on onto out outside over past per through "
        "throughout to toward towards under underneath until up upon via with within without "
        # conjunctions and particles
        "and or but nor so yet if because although though unless whereas whether while when "
        "where why how than then there here not n't s t ll ve re d m too also "
        # auxiliaries
        "am is are was were be been being have has had having do does did doing done will "
        "would shall should can could may might must cannot isn aren wasn weren don doesn "
        "didn won wouldn couldn shouldn hasn haven hadn".split()
    ),
    "de": frozenset(
        "der die das des dem den ein eine eines einer einem einen kein keine keines keiner "
        "keinem keinen dieser diese dieses diesem diesen jener jene jenes jenem jenen jeder "
        "jede jedes jedem jeden alle allen aller alles mein meine meiner meines meinem meinen "
        "dein deine deiner deines deinem deinen sein seine seiner seines seinem seinen ihr "
        "ihre ihrer ihres ihrem ihren unser unsere unserer unseres unserem unseren euer eure "
        "eurer eures eurem euren welcher welche welches welchem welchen solche solcher "
        "solches solchem solchen ich du er sie es wir mich dich sich uns euch ihn ihm ihnen "
        "mir dir wer wen wem wessen was man jemand niemand etwas nichts einander an am ans "
        "auf aufs aus außer bei beim bis durch entlang für fürs gegen gegenüber hinter im in "
        "ins innerhalb außerhalb mit nach neben ohne seit trotz über um unter unterhalb "
        "oberhalb vom von vor während wegen zu zum zur zwischen per pro ab und oder aber denn "
        "sondern doch dass daß ob weil wenn als wie falls damit obwohl bevor nachdem indem "
        "sowie sowohl weder noch so nicht auch nur dann dort hier da wo woran bin bist ist "
        "sind seid war warst waren wart gewesen habe hast hat haben habt hatte hatten hattest "
        "gehabt werde wirst wird werden werdet wurde wurden worden geworden würde würden kann "
        "kannst können könnt konnte konnten könnte könnten muss musst müssen müsst musste "
        "mussten soll sollst sollen sollt sollte sollten will willst wollen wollt wollte "
        "wollten darf darfst dürfen dürft durfte durften dürfte mag mögen möchte möchten".split()
    ),
    "fr": frozenset(
        "le la les l un une des du de d au aux ce cet cette ces mon ma mes ton ta tes son sa "
        "ses notre nos votre vos leur leurs chaque tout toute tous toutes quel quelle quels "
        "quelles aucun aucune je tu il elle on nous vous ils elles me te se lui y en moi toi "
        "soi eux qui que quoi dont où à après avant avec chez contre dans depuis derrière dès "
        "devant durant entre envers hors jusque malgré par parmi pendant pour sans sauf selon "
        "sous sur vers et ou mais ni car donc or si comme lorsque quand puisque quoique ne "
        "pas plus n s c j m t qu est sont était étaient être été suis es sommes êtes sera "
        "seront serait ai as a avons avez ont avait avaient avoir eu aura auront aurait peut "
        "peuvent pouvait doit doivent devait".split()
    ),
}


def function_words(language: str) -> frozenset[str]:
    """Return the function words of a language (two letters), in lower case; none where they are
    not known."""
    return FUNCTION_WORDS.get(language, frozenset())


@functools.lru_cache(maxsize=1 << 14)
def stem(word: str) -> str:
    """Return an English word without its ending: use, uses, used and using have one stem."""
    for ending in () if word.endswith("ss") else ENDINGS:  # process
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            word = word[: -len(ending)]
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]  # setting
    return word[:-1] + "i" if word.endswith("y") else word
