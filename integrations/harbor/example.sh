#!/bin/sh
# A trial of a task of Harbor's, in a sandbox.
exec harbor trial start -p "${1:?a task}" -a oracle -e offleash_harbor:OffleashEnvironment
