# The commands of daily work, by `just`. Each is also usable without just: scripts/ and cargo.

export PATH := `scripts/tools --path` + ":" + env('PATH')

# Lists the recipes.
_default:
    @just --list --unsorted

# Formats, lints and checks the module graph and the pages.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --test layout

# Runs one suite or a part of it: `just suite plugin native::`.
suite name *filter:
    cargo test --test {{ name }} -- {{ filter }}

# Runs all tests that need no cluster; `just test --release` runs others (docs/maintainers/development.md).
test *flags='--offline':
    scripts/test {{ flags }}

# Records the chart's snapshots and its tables of values. Read the diff.
chart:
    scripts/checks/chart-docs
    INSTA_UPDATE=always cargo test --test chart
    scripts/checks/lint-chart

# Compares the plugin's counted figures with docs/maintainers/benchmarks.json.
bench:
    scripts/bench --counts --baseline docs/maintainers/benchmarks.json

# Creates a cluster with the chart and some pods; `just quickstart --down` removes it.
quickstart *flags:
    scripts/quickstart {{ flags }}
