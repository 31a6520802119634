// Code in colours, near enough for most languages: comments, strings, numbers, and words that many of them reserve.

import { make } from "./dom.js";

const WORDS = `abstract and as async await begin bool break case catch char class const continue def default del delete do
double elif else end enum except export extends extern false final finally float fn for foreach from func function go if
impl implements import in include int interface is lambda let long loop match mod module mut namespace new nil none not
null None True False or package pass private protected pub public raise return select self short signed static string
struct super switch template then this throw trait true try type typedef union unsigned use using var virtual void volatile
where while with yield SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN ON AND OR NOT NULL GROUP BY ORDER`;
const KEYWORDS = new Set(WORDS.split(/\s+/));

const HASH_COMMENTS = new Set(["python", "py", "bash", "sh", "shell", "yaml", "yml", "toml", "ruby", "rb", "r", "make", "dockerfile"]);
const STRINGS = String.raw`"""[^]*?(?:"""|$)|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|${"`"}(?:[^${"`"}\\]|\\.)*${"`"}`;
const REST = String.raw`(?<number>\b\d[\w.]*)|(?<word>[A-Za-z_]\w*)`;

const pattern = (comment) => new RegExp(`(?<comment>${comment})|(?<string>${STRINGS})|${REST}`, "g");
const HASH = pattern("#.*");
const SLASHES = pattern(String.raw`\/\/.*|\/\*[^]*?\*\/`);

export function highlight(text, language) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(HASH_COMMENTS.has(language.toLowerCase()) ? HASH : SLASHES)) {
    const kind = kindOf(match.groups);
    if (kind === null) continue;
    nodes.push(text.slice(at, match.index), make(`span.code-${kind}`, {}, match[0]));
    at = match.index + match[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

function kindOf({ comment, string, number, word }) {
  if (comment !== undefined) return "comment";
  if (string !== undefined) return "string";
  if (number !== undefined) return "number";
  return KEYWORDS.has(word) ? "keyword" : null;
}
