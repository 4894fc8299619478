# shellcheck shell=bash disable=SC2034
# lib.sh - what demo and check share: packages and the build. Sourced.
#
# On Debian and its kin, what is missing is installed with apt, as root or with
# sudo; apt is not touched when all is there. On other systems the names of what
# is missing are printed, and the script ends.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Debian's package, and what the thing is called elsewhere.
build_packages='
gcc                  a C compiler
g++                  a C++ compiler
cmake                CMake, 3.22 or later
ninja-build          ninja (make will do)
pkg-config           pkg-config
libtorch-dev         libtorch (PyTorch for C++), 1.13 or later
libopenblas0-openmp  OpenBLAS, built with OpenMP
libmicrohttpd-dev    libmicrohttpd
libjansson-dev       jansson
libsqlite3-dev       SQLite 3
libsimdjson-dev      simdjson
libarchive-dev       libarchive
libzstd-dev          zstd
zlib1g-dev           zlib
libxxhash-dev        xxHash
libcurl4-openssl-dev libcurl
libssl-dev           OpenSSL
curl                 the program curl'
test_packages='
libcmocka-dev        cmocka
zstd                 the zstd program
binutils             nm (binutils)
sqlite3              the sqlite3 program
python3              Python 3
python3-torch        PyTorch for Python
chromium             Chromium
clang                clang
libclang-rt-dev      sanitizers and libFuzzer for clang
strace               strace'

say() { printf '%s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}
seconds_since() { say $((SECONDS - $1)); }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "needs root to install packages, and there is no sudo; run as root: $*"
    fi
}

installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Node from Debian, unless one that will do is there already.
node_packages() {
    if ! command -v node >/dev/null ||
        [ "$(node -p 'parseInt(process.versions.node)')" -lt 18 ]; then
        printf '%s\n' 'nodejs  Node.js, 18 or later'
    fi
    command -v npm >/dev/null || printf '%s\n' 'npm  npm'
}

# need LIST: install what of it is missing.
need() {
    local name what missing=() words=()
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        need_elsewhere "$1"
        return
    fi
    while read -r name what; do
        [ -n "$name" ] || continue
        installed "$name" || missing+=("$name")
    done <<<"$1"
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing: ${missing[*]}"
    words=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
    local log
    log=$(mktemp)
    # The lists may be there and fresh enough: ask for them only when they are not.
    if ! as_root "${words[@]}" >"$log" 2>&1; then
        as_root apt-get update -q >"$log" 2>&1 && as_root "${words[@]}" >>"$log" 2>&1 || {
            tail -n 20 "$log" >&2
            rm -f "$log"
            die "apt-get could not install: ${missing[*]}"
        }
    fi
    rm -f "$log"
}

# No apt here: look for programs and libraries, and name what is not found.
need_elsewhere() {
    local name what missing=()
    while read -r name what; do
        case $name in
        '') continue ;;
        gcc) command -v cc >/dev/null ;;
        g++) command -v c++ >/dev/null ;;
        ninja-build) command -v ninja >/dev/null || command -v make >/dev/null ;;
        pkg-config | cmake | curl | python3 | npm | sqlite3) command -v "$name" >/dev/null ;;
        nodejs) false ;; # asked for only where it is missing
        binutils) command -v nm >/dev/null ;;
        clang | zstd) command -v "$name" >/dev/null ;;
        strace) command -v strace >/dev/null || [ "$(uname -s)" != Linux ] ;;
        chromium) command -v chromium >/dev/null || command -v google-chrome >/dev/null ||
            [ -d "/Applications/Google Chrome.app" ] ;;
        libmicrohttpd-dev) pkg-config --exists libmicrohttpd ;;
        libjansson-dev) pkg-config --exists jansson ;;
        libsqlite3-dev) pkg-config --exists sqlite3 ;;
        libsimdjson-dev) pkg-config --exists simdjson ;;
        libarchive-dev) pkg-config --exists libarchive ;;
        libzstd-dev) pkg-config --exists libzstd ;;
        zlib1g-dev) pkg-config --exists zlib ;;
        libxxhash-dev) pkg-config --exists libxxhash ;;
        libcurl4-openssl-dev) pkg-config --exists libcurl ;;
        libssl-dev) pkg-config --exists libcrypto ;;
        libcmocka-dev) pkg-config --exists cmocka ;;
        python3-torch) python3 -c 'import torch' ;;
        # libtorch has no .pc file: CMake finds it, or says so.
        *) true ;;
        esac 2>/dev/null || missing+=("$what")
    done <<<"$1"
    [ ${#missing[@]} -eq 0 ] && return 0
    say "This system has no apt. Please install, and run this again:" >&2
    printf '  %s\n' "${missing[@]}" >&2
    say "libtorch is found through CMAKE_PREFIX_PATH, for instance" >&2
    say "  export CMAKE_PREFIX_PATH=\$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')" >&2
    exit 1
}

# build FOLDER TARGET… -- CMAKE_OPTION…: configure when needed, and build.
build() {
    local folder=$root/$1 targets=() log
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        targets+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift
    local generator=()
    if [ ! -f "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        generator=(-G Ninja)
    fi
    mkdir -p "$folder"
    log=$folder/build.log
    if ! { cmake -S "$root" -B "$folder" ${generator[@]+"${generator[@]}"} "$@" &&
        cmake --build "$folder" --parallel "$(build_jobs)" ${targets[@]+--target "${targets[@]}"}; } >"$log" 2>&1; then
        # What the compiler said, not the hundred lines around it.
        { grep -nE '(error|Error|FAILED|undefined reference)' "$log" || tail -n 40 "$log"; } | head -n 40 >&2
        die "the build failed; the whole of it is in ${log#"$root"/}"
    fi
}

cores() { nproc 2>/dev/null || sysctl -n hw.ncpu; }
memory_gb() {
    if [ -r /proc/meminfo ]; then
        awk '/^MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo
    else
        echo $(($(sysctl -n hw.memsize) / 1073741824))
    fi
}
# A file that includes libtorch takes a compiler 1.5 GB.
build_jobs() {
    local n m
    n=$(cores) m=$(($(memory_gb) * 2 / 3))
    [ "$m" -ge 1 ] || m=1
    say $((n < m ? n : m))
}
