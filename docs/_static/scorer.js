// The order of the answers of the search: Sphinx's own scores, changed by the words of the query and the kind of the page.
const wordsOfQuery = () =>
  (new URLSearchParams(window.location.search).get("q") || "")
    .toLowerCase()
    .split(/\s+/)
    .filter((word) => word.length > 2 && !/^models?$/.test(word));  // nearly each page is about models

// Recipes and answers come first; pages for contributors, indexes and the list of errors come last.
const bonusOf = (page) => {
  if (page.startsWith("design/")) return -20;
  if (page === "errors") return -8;
  if (page.endsWith("/index") || page.startsWith("coming_from")) return -2;
  return page.startsWith("howto/") || page === "explain/faq" ? 2 : 0;
};

var Scorer = {
  score: ([page, title, anchor, about, score]) => {
    const found = wordsOfQuery().filter((word) => title.toLowerCase().includes(word.replace(/s$/, ""))).length;
    return score + bonusOf(page) + 3 * found;
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
