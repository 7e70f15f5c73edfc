//! A zygote is kept apart from the sandboxes that are made below it.

use offleash_supervisor::service::order::Template;

use super::super::world::{collect, shell, until, within};
use super::{Zygote, test};

/// Looks, from a zygote's sandbox, for roots that are not its own until it is told that it is enough, and then whether it
/// may signal what runs below it; says whether anything does, and what it was not to find.
const LOOKS: &str = r#"exec /usr/bin/python3 -I -S - <<'END'
import os
own, found = os.stat("/"), set()
def processes():
    return filter(str.isdigit, os.listdir("/proc"))
print("looks", flush=True)
while not os.path.exists("/tmp/enough"):
    for name in processes():
        try:
            root = os.open("/proc/%s/root" % name, os.O_PATH)
        except OSError:
            continue
        there = os.fstat(root)
        os.close(root)
        if (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            found.add("another root")
below = 0
for name in processes():
    try:
        with open("/proc/%s/status" % name) as status:
            ids = [line.split() for line in status if line.startswith("NSpid:")]
        if len(ids[0]) > 2:
            below += 1
            os.kill(int(name), 0)
            found.add("signals")
    except OSError:
        pass
print(below > 0, sorted(found))
END"#;

#[test]
fn what_runs_in_a_zygote_never_looks_into_sandboxes_that_are_made_below_it() {
    test(async {
        let zygote = Zygote::new(Template::System).await;
        let mut looking = Vec::new();
        for _ in 0..3 {
            let mut stream = within(zygote.kept.supervisor.start(shell(LOOKS))).await.unwrap();
            until(&mut stream, "looks\n").await;
            looking.push(stream);
        }
        let mut sandboxes = Vec::new();
        for _ in 0..6 {
            sandboxes.push(zygote.sandbox(Template::System).await);
        }
        zygote.kept.output("touch /tmp/enough").await;
        for stream in looking {
            assert_eq!(collect(stream).await.0, "True []\n");
        }
    });
}
