# shellcheck shell=bash
# What the tools need of a machine, made or asked for. Sourced by tools/test, tools/quickstart and .ci/run:
#
#   set_up EXTRAS [COMMAND:PACKAGE]...
#       A virtual environment (.venv, or $CKPTFS_VENV) with ckptfs and the extras under constraints.txt, first in PATH;
#       and the programs named COMMAND, from the Debian package PACKAGE. Installs what is missing and nothing else. Done
#       before with the same pyproject.toml and constraints.txt: takes milliseconds.
#   require_fuse
#       The right to mount a FUSE filesystem.
#
# Both end the script with status 1, and say on standard error what is missing and what to do, where they cannot go on.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=$(realpath -m "${CKPTFS_VENV:-$root/.venv}")
PATH=$PATH:/usr/sbin:/sbin # Debian gives them to root only; mkfs.ext4 is there

say() { printf '%s\n' "$*" >&2; }

fail() {
    say "$(basename "$0"): $1"
    shift
    local line
    for line in "$@"; do say "  $line"; done
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }

require_fuse() {
    if [ ! -e /dev/fuse ] && [ "$(id -u)" = 0 ] && has modprobe; then modprobe fuse 2>/dev/null; fi
    [ -e /dev/fuse ] || fail "there is no /dev/fuse, so no filesystem can be mounted here." \
        "On a machine: load the kernel module, as root: modprobe fuse" \
        "In a container: start it with --device /dev/fuse --cap-add SYS_ADMIN"
    (: <>/dev/fuse) 2>/dev/null || fail "/dev/fuse is there, but may not be opened by $(id -un)." \
        "On a machine: it should be readable and writable by everyone: chmod 666 /dev/fuse, as root." \
        "In a container: start it with --device /dev/fuse --cap-add SYS_ADMIN"
    if [ "$(id -u)" = 0 ]; then
        local capabilities
        capabilities=$(awk '/^CapEff/ {print $2}' /proc/self/status)
        (((16#$capabilities >> 21) & 1)) || fail "this is root without CAP_SYS_ADMIN, which may not mount." \
            "In a container: start it with --cap-add SYS_ADMIN --device /dev/fuse"
    else
        has fusermount3 || fail "$(id -un) is not root, and there is no fusermount3, which mounts for other users." \
            "Install it, as root: apt-get install fuse3"
        [ -u "$(realpath "$(command -v fusermount3)")" ] ||
            fail "$(id -un) is not root, and fusermount3 is not setuid root." \
                "As root: chmod u+s $(command -v fusermount3)"
    fi
}

set_up() {
    local extras=$1
    shift
    mkdir -p "$venv" || fail "cannot create $venv." "Set CKPTFS_VENV to a directory that $(id -un) may write to."
    exec {lock}>"$venv/.ckptfs-lock"
    flock "$lock" # another tool may be setting up the same environment
    if up_to_date "$extras"; then
        install_packages fusermount3:fuse3 "$@"
    else
        install_packages fusermount3:fuse3 python3:python3 gcc:gcc pkg-config:pkg-config "$@"
        build_environment "$extras"
    fi
    exec {lock}>&-
    export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
}

# --- Debian packages --------------------------------------------------------------------------------------------------

# install_packages COMMAND:PACKAGE...: those whose COMMAND is missing. COMMAND - is always missing.
install_packages() {
    local pair missing=()
    for pair in "$@"; do
        has "${pair%%:*}" || missing+=("${pair#*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    has apt-get || fail "these are missing, and this is no Debian, where they could be installed: ${missing[*]}" \
        "(The names are Debian's.) Install them in the way of this system, then start again."
    [ "$(id -u)" = 0 ] || fail "these Debian packages are missing, and only root can install them: ${missing[*]}" \
        "As root: apt-get install ${missing[*]}"
    say "Installing Debian packages: ${missing[*]}"
    local log
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update >"$log" 2>&1 </dev/null
    if ! apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}" \
        >>"$log" 2>&1 </dev/null; then
        say "$(tail -n 8 "$log")"
        rm -f "$log"
        fail "these Debian packages could not be installed: ${missing[*]} (see above)." \
            "Without a network: install them by hand, then start again."
    fi
    rm -f "$log"
    hash -r
}

# --- the virtual environment ------------------------------------------------------------------------------------------

# What the environment was built from. Its own path is in it, since a moved environment does not work.
fingerprint() {
    {
        printf '%s\n' "$root" "$venv"
        "$venv/bin/python" --version
        cat "$root/pyproject.toml" "$root/constraints.txt"
    } | sha256sum
}

up_to_date() {
    "$venv/bin/python" -c '' 2>/dev/null && [ "$(fingerprint)" = "$(cat "$venv/.ckptfs-$1" 2>/dev/null)" ]
}

build_environment() {
    local extras=$1 log python replace=()
    log=$(mktemp)
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(find_python) || exit 1
        # An environment that does not work is replaced; any other directory is not emptied.
        [ ! -e "$venv/pyvenv.cfg" ] || replace=(--clear)
        say "Creating a virtual environment: $venv"
        "$python" -m venv "${replace[@]}" "$venv" >"$log" 2>&1 || {
            say "$(tail -n 5 "$log")"
            fail "the virtual environment could not be created (see above)." "Set CKPTFS_VENV to have it elsewhere."
        }
    fi
    require_headers "$venv/bin/python"
    say "Installing ckptfs[$extras] and what it needs (the first time this takes minutes: torch is large)"
    if ! "$venv/bin/python" -m pip install --no-input --disable-pip-version-check --retries 2 \
        --editable "${root}[$extras]" --constraint "$root/constraints.txt" >"$log" 2>&1 </dev/null; then
        say "$(grep -v '^ *WARNING: Retrying' "$log" | tail -n 15)"
        if grep -q -e 'WARNING: Retrying' -e 'Could not fetch URL' -e 'No matching distribution' "$log"; then
            fail "Python packages could not be fetched (see above; all of it: $log)." \
                "Is there a network, and a package index that pip may use?"
        fi
        fail "Python packages could not be installed (see above; all of it: $log)."
    fi
    fingerprint >"$venv/.ckptfs-$extras"
    rm -f "$log"
}

# Prints the first Python that is new enough and can make virtual environments.
find_python() {
    local python
    for python in python3 python3.14 python3.13 python3.12 python3.11; do
        has "$python" || continue
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            install_packages "-:$(python_package "$python" venv)"
            "$python" -c 'import ensurepip, venv' 2>/dev/null ||
                fail "$python cannot make virtual environments: it has no module venv or ensurepip."
        fi
        command -v "$python"
        return
    done
    fail "Python 3.11 or newer is needed; here is $(python3 --version 2>&1)." \
        "Debian 12 and later have it: apt-get install python3"
}

# pyfuse3 is compiled: against Python's, libc's and libfuse's headers.
require_headers() {
    local python=$1 packages=()
    [ -e "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
        packages+=("-:$(python_package "$python" dev)")
    [ -e /usr/include/stdio.h ] || packages+=(-:libc6-dev)
    pkg-config --exists fuse3 || packages+=(-:libfuse3-dev)
    install_packages "${packages[@]}"
}

# python_package PYTHON dev|venv: Debian's name of it for that version.
python_package() { "$1" -c 'import sys; print("python%d.%d-%s" % (*sys.version_info[:2], sys.argv[1]))' "$2"; }
