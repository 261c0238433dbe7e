// How the search of the site answers. Sphinx runs this after its own script of the search, and before it reads the query.

// What readers type, and what the pages say.
const synonyms = {
  "data loader": "feed data",
  "different learning rate": "learning rate for each layer",
  "initialize weights": "initialize the weights",
  "stable release": "versions",
  "switch off": "turn off",
  "weight initialization": "initialize the weights",
  cuda: "install gpu",
  dataloader: "feed data",
  dataset: "feed data",
  ddp: "data parallel",
  disable: "turn off",
  identical: "equal",
  minibatch: "feed data",
  pip: "install",
  pypi: "install",
  pytest: "test a model",
  speed: "profile",
};

const ENOUGH = 5; // with fewer answers, pages that lack a word of the query follow
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

// The answers that have all words of a reading.
const answersTo = (reading) => {
  words = splitQuery(reading).filter((word) => word.length > 2 && !/^models?$/.test(word)); // nearly each page is about models
  return Search._performSearch(...Search._parseQuery(reading));
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
