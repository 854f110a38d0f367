#!/bin/sh
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Usage: find_python.sh MINIMUM [INTERPRETER]
#
# Prints the path and the full version, a line each, of a Python of at least the version MINIMUM (like 3.11) that can
# make virtual environments: INTERPRETER when one is named, else the first good one of python3 and python3.N on PATH,
# else one that pyenv keeps.

set -eu

minimum=$1
named=${2:-}

# Prints the interpreter's own path and version when it is new enough and has what venv needs, else nothing.
probe() {
    "$1" - "$minimum" 2>/dev/null <<'PYTHON' || true
import sys
if sys.version_info[:2] >= tuple(int(part) for part in sys.argv[1].split(".")):
    import ensurepip
    import venv
    print(sys.executable)
    print(sys.version.replace("\n", " "))
PYTHON
}

candidates() {
    if [ -n "$named" ]; then
        echo "$named"
        return
    fi
    printf '%s\n' python3 python3.14 python3.13 python3.12 python3.11
    pyenv=$(command -v pyenv) || return 0
    # With another home folder pyenv answers with a folder that is not there; its own place is the other hint.
    for root in "$(pyenv root)" "$(dirname "$(dirname "$(readlink -f "$pyenv")")")"; do
        printf '%s\n' "$root"/versions/3.*/bin/python3 | sort -rV
    done
}

found=$(candidates | while read -r candidate; do
    path=$(probe "$candidate")
    if [ -n "$path" ]; then
        echo "$path"
        break
    fi
done)

if [ -z "$found" ]; then
    if [ -n "$named" ]; then
        echo "$named is not a Python $minimum or newer with the modules venv and ensurepip."
    else
        echo "No Python $minimum or newer with the modules venv and ensurepip was found on PATH or in pyenv."
    fi
    echo "Install one (on Debian and Ubuntu the package python3-venv as well), or name one with PYTHON=,"
    echo "for make sanity with SANITY_PYTHON=."
    exit 1
fi
echo "$found"
