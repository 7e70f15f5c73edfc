#!/system/usr/bin/busybox sh
# The first process of the virtual machine: a root of its own, because nobody can pivot away from the first one, which
# has no parent.
b=/system/usr/bin/busybox
$b mkdir -p /root
$b mount -t tmpfs -o mode=755,size=90% none /root
$b cp -a /system/. /root/
exec $b switch_root /root /vm/start
