#!/bin/sh
# Copyright (c) 2026, the iofabric.sharing contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Usage: lint.sh MYPY_ARGUMENT...     (`make lint` sets up PATH, ANSIBLE_* and MYPYPATH)
#
# Runs every static check, all of them even if one complains, and fails when any did.

set -u
exec 2>&1
[ -t 1 ] || export NO_COLOR=1

failed=""

check() {
    name=$1
    shift
    printf -- '--- %s\n' "$name"
    "$@" </dev/null || failed="$failed $name"
}

check ruff ruff check --no-fix .
check ruff-format ruff format --check .
check mypy mypy "$@"
check mypy-tools mypy tests/tools
check mypy-roles mypy roles/*/files/*.py playbooks/files/*.py
check mypy-hosts env MYPYPATH=tests/hosts mypy tests/hosts/hosts.py tests/hosts/inside.py
check mypy-vm mypy tests/vm/__main__.py tests/vm/playing.py tests/vm/inside/*.py tests/vm/connection/*.py tests/vm/callback/*.py
check mypy-fuzz mypy -p ansible_collections.iofabric.sharing.tests.fuzz
check shellcheck shellcheck .ci/run tests/tools/*.sh tests/vm/inside/init
check yamllint yamllint --strict .
check ansible-lint ansible-lint --offline --strict
check antsibull-docs antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=all \
    --disallow-unknown-collection-refs --check-extra-docs-refs .build/collections/ansible_collections/iofabric/sharing
check antsibull-changelog antsibull-changelog lint
check reuse reuse lint --lines

if [ -n "$failed" ]; then
    printf 'lint: these checks complain:%s\n' "$failed"
    exit 1
fi
echo "lint: no complaints"
