// Markdown to elements, block by block. Blocks that did not change since the last call keep their elements, so that an
// answer that grows costs no more than its last block.

import { highlight } from "./highlight.js";
import { make } from "./dom.js";
import { copyButton } from "./copy.js";

export function renderMarkdown(container, text) {
  const blocks = splitBlocks(text);
  const known = (container.markdownBlocks ??= []);
  blocks.forEach((block, place) => {
    if (known[place] === block.source) return;
    const element = BUILD[block.kind](block);
    if (place < container.children.length) container.children[place].replaceWith(element);
    else container.append(element);
    known[place] = block.source;
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
  known.length = blocks.length;
}

// Blocks: {kind, source, ...}. Each rule looks at the lines from `at` on and says where its block ends.

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function splitBlocks(text) {
  const lines = text.replaceAll("\r\n", "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const [block, end] = blockAt(lines, at);
    blocks.push({ ...block, source: block.kind + "\n" + lines.slice(at, end).join("\n") });
    at = end;
  }
  return blocks;
}

function blockAt(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) {
    const close = lines.findIndex((other, i) => i > at && other.trim().startsWith(fence[1]) && /^[`~]+$/.test(other.trim()));
    const end = close === -1 ? lines.length : close;
    return [{ kind: "code", language: fence[2], text: lines.slice(at + 1, end).join("\n") }, close === -1 ? end : end + 1];
  }
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: heading[2] }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (QUOTE.test(line)) return run(lines, at, (other) => QUOTE.test(other), "quote");
  if (ITEM.test(line)) return run(lines, at, (other, i) => isPartOfList(lines, other, i), "list");
  if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1]))
    return run(lines, at, (other) => other.includes("|"), "table");
  return run(lines, at, (other) => other.trim() !== "" && !begins(other), "paragraph");
}

const begins = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((rule) => rule.test(line));

/** An item, what is indented under one, or a blank line between two. */
function isPartOfList(lines, line, at) {
  if (line.trim() !== "") return ITEM.test(line) || /^\s{2,}\S/.test(line) || lines[at - 1].trim() !== "" && !begins(line);
  const next = lines[at + 1] ?? "";
  return ITEM.test(next) || /^\s{2,}\S/.test(next);
}

function run(lines, at, belongs, kind) {
  let end = at + 1;
  while (end < lines.length && belongs(lines[end], end)) end += 1;
  return [{ kind, lines: lines.slice(at, end) }, end];
}

const BUILD = {
  paragraph: ({ lines }) => make("p", {}, ...inline(lines.join("\n"))),
  heading: ({ level, text }) => make(`h${Math.min(level, 4)}`, {}, ...inline(text)),
  rule: () => make("hr"),
  quote: ({ lines }) => {
    const quote = make("blockquote.prose");
    renderMarkdown(quote, lines.map((line) => QUOTE.exec(line)[1]).join("\n"));
    return quote;
  },
  code: ({ language, text }) =>
    make("div.code-block", {},
      make("div.code-head", {}, make("span", {}, language || "text"), copyButton(() => text)),
      make("pre", { tabIndex: 0 }, make("code", {}, ...highlight(text, language)))),
  list: ({ lines }) => buildList(lines),
  table: ({ lines }) => {
    const [head, , ...rows] = lines.map(cells);
    const row = (texts, tag) => make("tr", {}, ...texts.map((text) => make(tag, {}, ...inline(text))));
    return make("div.table-scroll", {},
      make("table", {}, make("thead", {}, row(head, "th")), make("tbody", {}, ...rows.map((texts) => row(texts, "td")))));
  },
};

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function buildList(lines) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const list = make(ordered ? "ol" : "ul");
  if (ordered) list.start = parseInt(first[2], 10);
  const indent = first[1].length;
  let item = null;
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent) {
      item = { text: [match[3]], nested: [] };
      list.append(make("li"));
      list.lastChild.parts = item;
    } else if (item.nested.length || match) item.nested.push(line);
    else if (line.trim()) item.text.push(line.trim());
  }
  for (const element of list.children) {
    const { text, nested } = element.parts;
    element.append(...inline(text.join("\n")));
    if (nested.length) element.append(...splitBlocks(nested.join("\n")).map((block) => BUILD[block.kind](block)));
  }
  return list;
}

// Within a block: one pass, and no pattern looks further than a paragraph's usual length, since a model that repeats
// itself may write thousands of marks that are never closed. Code comes first: nothing in it has a meaning.

const INLINE = new RegExp([
  /`(?<code>[^`]{1,1000})`/,
  /\*\*(?<strong>(?=\S)[^]{0,1000}?\S)\*\*/,
  /(?<![\w*])\*(?<starred>(?=[^\s*])[^*]{0,1000}[^\s*])\*(?![\w*])/,
  /(?<![\w_])_(?<underlined>(?=[^\s_])[^_]{0,1000}[^\s_])_(?![\w_])/,
  /~~(?<struck>(?=\S)[^]{0,1000}?\S)~~/,
  /\[(?<words>[^\]\n]{1,500})\]\((?<target>https?:\/\/[^\s()]{1,2000})\)/,
  /(?<address>https?:\/\/[^\s<>()"'`]{0,2000}[^\s<>()"'`.,;:!?])/,
].map(({ source }) => source).join("|"), "g");

function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(...withBreaks(text.slice(at, match.index)), inlineElement(match.groups));
    at = match.index + match[0].length;
  }
  return [...nodes, ...withBreaks(text.slice(at))];
}

function inlineElement({ code, strong, starred, underlined, struck, words, target, address }) {
  if (code !== undefined) return make("code", {}, code);
  if (strong !== undefined) return make("strong", {}, ...inline(strong));
  if (struck !== undefined) return make("s", {}, ...inline(struck));
  if (target !== undefined) return link(target, words);
  if (address !== undefined) return link(address, address);
  return make("em", {}, ...inline(starred ?? underlined));
}

const withBreaks = (text) => text.split("\n").flatMap((line, i) => (i ? [make("br"), line] : [line]));
const link = (href, text) => make("a", { href, target: "_blank", rel: "noopener noreferrer" }, text);
