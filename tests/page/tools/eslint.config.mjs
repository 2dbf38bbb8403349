// The rules for the JavaScript of the pages. Types, and names that do not exist, are left to the type checker.

import { createRequire } from "node:module";

// This file is not next to the installed packages: ESLint is.
const require = createRequire(process.argv[1]);
const js = require("@eslint/js");
const globals = require("globals");

export default [
  {
    files: ["**/*.js"],
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: { ...globals.browser } },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      ...js.configs.recommended.rules,
      "array-callback-return": "error",
      "consistent-this": "error",
      curly: ["error", "multi-line"],
      eqeqeq: ["error", "always", { null: "ignore" }],
      "max-depth": ["error", 3],
      "max-len": ["error", { code: 140, ignoreStrings: true, ignoreTemplateLiterals: true }],
      "max-lines": ["error", { max: 300, skipComments: true, skipBlankLines: true }],
      "max-lines-per-function": ["error", 60],
      "max-params": ["error", 4],
      "no-alert": "error",
      "no-console": "error",
      "no-else-return": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-shadow": ["error", { builtinGlobals: false }],
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_$" }],
      "no-use-before-define": ["error", { functions: false, variables: false }],
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
      // Markdown from the server is the one thing that may be inserted as HTML, in one place.
      "no-restricted-syntax": [
        "error",
        { selector: "MemberExpression[property.name=/^(outerHTML|insertAdjacentHTML)$/]", message: "Insert elements, not HTML." },
        { selector: "AssignmentExpression[left.property.name=innerHTML]", message: "Insert elements, or use showMarkdown." },
      ],
    },
  },
  {
    files: ["**/shared/markdown.js"],
    rules: { "no-restricted-syntax": "off" },
  },
  {
    files: ["**/sw.js"],
    languageOptions: { globals: { ...globals.serviceworker } },
  },
  {
    files: ["**/texts/*.js"],
    rules: { "max-lines": "off" },
  },
];
