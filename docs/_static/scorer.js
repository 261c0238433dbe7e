// The order of the answers of the search: Sphinx's own scores, with pages for contributors and the list of errors later.
var Scorer = {
  score: ([page, title, anchor, about, score]) => score - (page.startsWith("design/") ? 20 : page === "errors" ? 8 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
