#!/bin/sh
# Links programs for aarch64 as position-independent static ones. Rust does that by itself for x86-64 alone (its target says
# `static_position_independent_executables`); for this processor it compiles such code, and then asks for `-static -no-pie`.
#
# mold links where it is in PATH. glibc's `libc.a` and `libm.a` reach 32 KiB of the global offset table, and GNU ld makes an entry for
# each function that Rust takes the address of, which are more. mold makes none for what it knows the distance of.
#
# What brings its own entry point, as the guest does (`-nostartfiles`), stays at its fixed address.
case $(uname -m) in
aarch64) linker=cc ;;
*) linker=aarch64-linux-gnu-gcc ;;
esac
case " $* " in
*' -nostartfiles '*) exec "$linker" "$@" ;;
esac
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1 left=$((left - 1))
    shift
    case $argument in
    -static) set -- "$@" -static-pie ;;
    -no-pie) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
# A compiler for another processor looks for linkers among its own programs, not in PATH.
mold=$(command -v ld.mold) && set -- -fuse-ld=mold -B"${mold%/*}" "$@"
exec "$linker" "$@"
