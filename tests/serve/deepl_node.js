// Calls of deepl-node: its folder, the server's address and a German sentence come as arguments; what
// the calls return is written as JSON.
"use strict";
const [folder, serverUrl, source] = process.argv.slice(2);
const deepl = require(folder), fs = require("fs"), os = require("os"), path = require("path");
const client = new deepl.DeepLClient("any", { serverUrl });
const entries = terms => new deepl.GlossaryEntries({ entries: terms });
const dictionary = (from, to, terms) => ({ sourceLangCode: from, targetLangCode: to, entries: entries(terms) });
const counts = glossary => glossary.dictionaries.map(each => [each.sourceLangCode, each.targetLangCode, each.entryCount]);

async function main() {
  const found = {};
  found.one = (await client.translateText(source, null, "en-US")).text;
  const options = { tagHandling: "xml", ignoreTags: ["a", "b"], outlineDetection: false, preserveFormatting: true };
  found.several = (await client.translateText([source, source], "de", "en-GB", options)).map(each => each.text);
  found.targets = (await client.getTargetLanguages()).map(each => each.code);
  const one = await client.createGlossary("one", "de", "en", entries({ Patient: "moonlight" }));
  found.entries = (await client.getGlossaryEntries(one)).entries();
  found.placed = (await client.translateText(source, "de", "en-GB", { glossary: one })).text;
  await client.deleteGlossary(one);
  const several = await client.createMultilingualGlossary("several", [dictionary("de", "en", { a: "b" }), dictionary("en", "fr", { c: "d" })]);
  found.dictionaries = counts(await client.getMultilingualGlossary(several.glossaryId));
  await client.replaceMultilingualGlossaryDictionary(several, dictionary("de", "en", { a: "x" }));
  await client.updateMultilingualGlossaryDictionary(several, dictionary("de", "en", { e: "f" }));
  await client.deleteMultilingualGlossaryDictionary(several, "en", "fr");
  found.name = (await client.updateMultilingualGlossaryName(several, "renamed")).name;
  found.changed = counts(await client.getMultilingualGlossary(several.glossaryId));
  await client.deleteMultilingualGlossary(several);
  found.left = await client.listMultilingualGlossaries();
  found.missing = await client.getGlossary(one.glossaryId).catch(error => error.constructor.name);
  const work = fs.mkdtempSync(path.join(os.tmpdir(), "deepl-"));
  fs.writeFileSync(path.join(work, "in.txt"), source + "\n");
  await client.translateDocument(path.join(work, "in.txt"), path.join(work, "out.txt"), "de", "en-US");
  found.document = fs.readFileSync(path.join(work, "out.txt"), "utf8");
  fs.rmSync(work, { recursive: true });
  console.log(JSON.stringify(found));
}
main().catch(error => { console.error(error); process.exit(1); });
