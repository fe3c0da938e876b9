//! `/live`, `/ready` and `/metrics`.
