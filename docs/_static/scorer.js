// How the search of the site answers. Sphinx runs this after its own script of the search, and before it reads the query.

// What readers type, and what the pages say.
const synonyms = {
  "breaking changes": "versions and compatibility",
  "data loader": "feed data",
  "deep copy": "copy a model",
  "different learning rate": "learning rate for each layer",
  "get started": "quick start",
  "getting started": "quick start",
  "initialize weights": "initialize the weights",
  "nan loss": "nan",
  "stable release": "versions",
  "switch off": "turn off",
  "tied weights": "share weights",
  "unit test": "test a model",
  "weight initialization": "initialize the weights",
  "weight sharing": "share weights",
  batchnorm: "batch norm",
  cuda: "install gpu",
  dataloader: "feed data",
  dataset: "feed data",
  ddp: "data parallel",
  deepcopy: "copy a model",
  disable: "turn off",
  identical: "equal",
  jupyter: "notebooks",
  macos: "operating systems",
  minibatch: "feed data",
  oom: "memory",
  pip: "install",
  pypi: "install",
  pytest: "test a model",
  quickstart: "quick start",
  speed: "profile",
  windows: "operating systems",
};

const ENOUGH = 5; // with fewer answers, pages that lack a word of the query follow
const HEADING = 13; // the score of a heading with all words of the query, before 3 for each word
const LATER = 200; // how much is taken from the score of answers that come after all others

// The query itself, and the query in the words of the pages.
const readingsOf = (query) => {
  const inWordsOfPages = Object.entries(synonyms).reduce(
    (text, [typed, said]) => text.replace(new RegExp(`\\b${typed}\\b`), said),
    query.toLowerCase(),
  );
  return [...new Set([query.toLowerCase(), inWordsOfPages])];
};

let words = []; // of the reading that is being answered

// Recipes and answers come first; pages for contributors, indexes and the list of errors come last.
const bonusOf = (page) => {
  if (page.startsWith("design/")) return -3 * LATER;
  if (page === "errors") return words.some((word) => /^errors?$/.test(word)) ? 4 : -8;
  if (page.endsWith("/index") || page.startsWith("coming_from")) return -2;
  return page.startsWith("howto/") || page === "explain/faq" ? 2 : 0;
};

var Scorer = {
  score: ([page, title, anchor, about, score, file, kind]) => {
    const found = words.filter((word) => title.toLowerCase().includes(word.replace(/s$/, ""))).length;
    return score + bonusOf(page) + 3 * found - (kind === SearchResultKind.index ? 2 * LATER : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// The headings that contain each of several words, in any order; shorter ones are better.
const headingsWithAllWords = () => {
  if (words.length < 2) return [];
  const { alltitles, docnames, filenames, titles } = Search._index;
  return Object.entries(alltitles)
    .filter(([heading]) => words.every((word) => heading.toLowerCase().includes(word.replace(/s$/, ""))))
    .flatMap(([heading, places]) => places.map(([file, anchor]) => {
      const title = titles[file] === heading ? heading : `${titles[file]} > ${heading}`;
      const score = HEADING + bonusOf(docnames[file]) + 3 * words.length - heading.length / 100;
      return [docnames[file], title, anchor === null ? "" : "#" + anchor, null, score, filenames[file], SearchResultKind.title];
    }));
};

// The answers that have all words of a reading.
const answersTo = (reading) => {
  const isTelling = (word) => word.length > 2 && !stopwords.has(word) && !/^models?$/.test(word); // all pages are about models
  words = splitQuery(reading).filter(isTelling);
  return [...Search._performSearch(...Search._parseQuery(reading)), ...headingsWithAllWords()];
};

// The pages that have at least one of the terms, and score for each term that they have.
const pagesWithSomeOf = (terms) => {
  const found = new Map();
  for (const term of terms) {
    for (const [page, title, anchor, about, score, ...rest] of Search.performTermsSearch(new Set([term]), new Set())) {
      const before = found.has(page) ? found.get(page)[4] : bonusOf(page) - LATER;
      found.set(page, [page, title, anchor, about, before + score, ...rest]);
    }
  }
  return [...found.values()];
};

// The best answer is last; each page and each heading is there once.
const inOrder = (answers) => {
  const best = new Map();
  answers.sort(_orderResultsByScoreThenName).forEach((answer) => {
    const place = answer.slice(0, 4).join();
    best.delete(place);
    best.set(place, answer);
  });
  return [...best.values()];
};

Search.query = (query) => {
  const readings = readingsOf(query);
  const answers = readings.flatMap(answersTo);
  const [, terms, , highlighted] = Search._parseQuery(readings.join(" "));
  if (answers.filter((answer) => answer[4] > 0).length < ENOUGH) answers.push(...pagesWithSomeOf(terms));
  const ordered = inOrder(answers);
  _displayNextItem(ordered, ordered.length, terms, highlighted);
};
