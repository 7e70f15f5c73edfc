#!/bin/sh
# The command `offleash` of the package: becomes the program, which is in a package of its own for each platform. A shell,
# because Node.js takes longer to start than a sandbox does, and would stay beside the program.
case "$(uname -s)-$(uname -m)" in
Linux-x86_64) platform=linux-x64 ;;
Linux-aarch64) platform=linux-arm64 ;;
*)
    echo "error: there is no program of offleash for $(uname -s) on $(uname -m)" >&2
    exit 125
    ;;
esac
here=$(dirname "$(readlink -f "$0")")
# Beside this package, or in it: where npm, pnpm and Yarn put what it depends on.
for place in "$here/../node_modules" "$here/../.."; do
    program=$place/offleash-$platform/bin/offleash
    [ ! -x "$program" ] || exec "$program" "$@"
done
printf '%s\n' "error: the package \`offleash-$platform\` is not installed, which has the program" '' \
    "hint: install its archive from where this one came, \`npm install --global ./offleash-$platform-VERSION.tgz\`" >&2
exit 125
