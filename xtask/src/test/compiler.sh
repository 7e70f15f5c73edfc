#!/usr/bin/env bash
# The compiler of the workspace's crates, as cargo calls it: Clippy's driver compiles, and judges the code; `rustdoc` then judges
# what is said of it, with the same dependencies. `cargo doc` would go through the sources of all of these once more.
#
# Not by a smaller shell: that loses variables whose names are no words, as `CARGO_BIN_EXE_offleash-guest`.
clippy-driver "$@" || exit

name=
before=
for word; do
    [ "$word" = --test ] && exit
    [ "$before" = --crate-name ] && name=$word
    before=$word
done
# Those of another's sources are not ours to mend.
case $name in "" | ___ | build_script_* | offleash_bashkit) exit ;; esac

shift
count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case $word in
    # Of a compiler alone.
    --emit=* | --error-format=* | --json=*) ;;
    --warn=* | --deny=* | --allow=* | --forbid=*)
        case $word in *=rustdoc::*) set -- "$@" "$word" ;; esac
        ;;
    --out-dir)
        shift
        count=$((count - 1))
        set -- "$@" --out-dir "$OFFLEASH_DOCUMENTS"
        ;;
    *) set -- "$@" "$word" ;;
    esac
done
exec rustdoc --document-private-items --deny warnings "$@"
