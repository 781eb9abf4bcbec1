# Shortcuts. Each is a script in scripts/ or one cargo command, so that nothing needs `just`.

# list the recipes
default:
    @just --list

# everything that CI runs
ci:
    scripts/ci

# all tests and checks, installing what they need
test:
    scripts/test

# measure, for instance: just bench stream idle
bench *names:
    scripts/bench {{ names }}

# three simulated clusters with churn, mirrored and served; needs no server
demo *options:
    scripts/demo {{ options }}

# a sample mesh in a real etcd, mirrored and served
quickstart *options:
    scripts/quickstart {{ options }}

# a release: the stripped binary, and its symbols beside it
release:
    scripts/release

# format the code
fmt:
    cargo fmt

# the lints alone: of everything, then of what ships, where the compiler sees dead code
lint:
    cargo clippy --locked --all-targets -- -D warnings
    cargo clippy --locked --lib --bins -- -D warnings

# count the code lines of each room, without tests, comments and blank lines
lines revision="":
    scripts/lines {{revision}}

# write the OpenAPI document into openapi/
openapi:
    scripts/openapi

# lint both OpenAPI documents with redocly and spectral
openapi-lint:
    scripts/openapi-lint

# examples of the OpenAPI document, from the answers of a running meshkeep
openapi-examples url="http://127.0.0.1:9870":
    scripts/openapi-examples {{url}}

# licences and advisories (needs cargo-deny and, for advisories, GitHub)
deny:
    cargo deny check

# build the container image without a container engine or registry, and try it
container-trial:
    scripts/container-trial

# the long runs: the store under power cuts and kills, then 10 million changes of the stream, or as many as given
soak *events:
    scripts/soak {{ events }}

# what takes too long for CI: scripts/nightly names the steps
nightly *steps:
    scripts/nightly {{ steps }}

# the container image, with its labels: just image registry.example.org/meshkeep:0.1.0
image name:
    scripts/image {{ name }}

# damaged bytes for every decoder, for so many seconds each
fuzz *seconds:
    scripts/fuzz {{ seconds }}

# lines of the writer, the store and the resync that are broken one by one: a unit test must notice; those whose names begin so, or all (an hour)
mutants *names:
    scripts/mutants {{ names }}

# the attacks at full size: 12,000 strangers that hold every connection, or as many as given; `remote`, the etcds that lie; `files`, client files that are hard to read; `lists`, keys and services that are too large; or `face`, one client of the etcd face that asks for all it can
attack *what:
    scripts/attack {{ what }}

# the Helm chart: lint, unit tests, rendered values against Kubernetes' schemas; --write writes deploy/kustomize anew
chart *options:
    scripts/chart {{ options }}

# the Grafana dashboard, from the panels in scripts/dashboard
dashboard:
    scripts/dashboard
