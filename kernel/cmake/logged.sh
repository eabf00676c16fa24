#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# logged.sh LOG COMMAND...: runs COMMAND with its messages in LOG (ptxas reports registers there); shown if it fails.
log=$1
shift
"$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
