# Shortcuts. Each is a script in scripts/ or one cargo command, so that nothing needs `just`.

# list the recipes
default:
    @just --list

# run everything that CI runs
ci:
    scripts/ci

# run all tests and checks, and install what they need
test:
    scripts/test

# run benches, for instance: just bench stream idle
bench *names:
    scripts/bench {{ names }}

# run three simulated clusters with churn, mirrored and served (needs no etcd)
demo *options:
    scripts/demo {{ options }}

# run a sample mesh in a real etcd, mirrored and served
quickstart *options:
    scripts/quickstart {{ options }}

# make all artifacts of a release from the newest commit: just release 0.2.0 [--source-url URL]
release version *options:
    scripts/release {{ version }} {{ options }}

# make a release twice with quickly built binaries, and try each artifact
release-trial *options:
    scripts/release-trial {{ options }}

# format the code
fmt:
    cargo fmt --all

# run clippy on all targets, then on the shipped targets, where it finds unused code
lint:
    cargo clippy --locked --workspace --all-targets -- -D warnings
    cargo clippy --locked --workspace --lib --bins -- -D warnings

# count the code lines of each room, without tests, comments and blank lines
lines revision="":
    scripts/lines {{revision}}

# write the OpenAPI documents into openapi/
openapi:
    scripts/openapi

# lint both OpenAPI documents with redocly and spectral
openapi-lint:
    scripts/openapi-lint

# write the examples of the OpenAPI document from a running meshkeep's answers
openapi-examples url="http://127.0.0.1:9870":
    scripts/openapi-examples {{url}}

# check licences and advisories (needs cargo-deny and, for advisories, GitHub)
deny:
    cargo deny check

# build and test the container image without a container engine or registry
container-trial:
    scripts/container-trial

# run the long tests: the store under power cuts and kills, then 10 million (or EVENTS) changes
soak *events:
    scripts/soak {{ events }}

# run checks that take too long for CI (scripts/nightly lists the steps)
nightly *steps:
    scripts/nightly {{ steps }}

# build the container image with its labels: just image registry.example.org/meshkeep:0.1.0
image name:
    scripts/image {{ name }}

# run every decoder with mutated bytes, for SECONDS each
fuzz *seconds:
    scripts/fuzz {{ seconds }}

# break safety-relevant lines one by one (only names that begin with NAMES): a test must notice each
mutants *names:
    scripts/mutants {{ names }}

# run an attack at full size: WHAT is a number of clients, `remote`, `files`, `lists` or `face`
attack *what:
    scripts/attack {{ what }}

# check the Helm chart: lint, unit tests, rendered values; --write writes deploy/kustomize again
chart *options:
    scripts/chart {{ options }}

# try the chart and the mirror with Kubernetes' API server and a clustermesh-apiserver: values,
# archive, kustomize, upgrades, sidecar or mirror
cluster-trial *parts:
    scripts/cluster-trial {{ parts }}

# write the Grafana dashboard from the panels in scripts/dashboard
dashboard:
    scripts/dashboard
