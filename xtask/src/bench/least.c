/* The least that a sandbox costs here: what bubblewrap sets up as the benchmark calls it, in as few calls, and a filter of
 * system calls. No limits, no writable layer, no process of its own inside, no record: a measure, and nothing to be used. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RULES 60

static void must(long result, const char *tried) {
    if (result < 0) {
        perror(tried);
        _exit(125);
    }
}

static void put(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    must(file, path);
    must(write(file, text, strlen(text)), path);
    close(file);
}

static void bind_to(const char *from, const char *to, unsigned long flags) {
    must(mount(from, to, NULL, MS_BIND | MS_REC, NULL), from);
    if (flags)
        must(mount(NULL, to, NULL, MS_BIND | MS_REMOUNT | flags, NULL), to);
}

static void make_root(void) {
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {{"usr/bin", "bin"}, {"usr/lib", "lib"}, {"usr/lib64", "lib64"}, {"usr/sbin", "sbin"}};
    char from[64], to[64];

    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
    must(mount("root", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), "root");
    must(chdir("/tmp"), "root");
    must(mkdir("usr", 0755), "usr");
    bind_to("/usr", "usr", MS_RDONLY | MS_NOSUID | MS_NODEV);
    for (size_t each = 0; each < sizeof links / sizeof *links; each++)
        must(symlink(links[each][0], links[each][1]), links[each][1]);
    must(mkdir("proc", 0555), "proc");
    must(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "proc");
    must(mkdir("dev", 0755), "dev");
    must(mount("dev", "dev", "tmpfs", MS_NOSUID, "mode=755"), "dev");
    for (size_t each = 0; each < sizeof devices / sizeof *devices; each++) {
        snprintf(from, sizeof from, "/dev/%s", devices[each]);
        snprintf(to, sizeof to, "dev/%s", devices[each]);
        must(mknod(to, S_IFREG | 0600, 0), to);
        bind_to(from, to, 0);
    }
    must(mkdir("tmp", 0777), "tmp");
    must(mount("tmp", "tmp", "tmpfs", MS_NOSUID | MS_NODEV, NULL), "tmp");
    must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    must(umount2(".", MNT_DETACH), "old root");
    must(chdir("/"), "root");
}

static void filter(void) {
    struct sock_filter rules[RULES + 3];
    struct sock_fprog program = {.len = RULES + 3, .filter = rules};
    int at = 0;

    rules[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    /* Numbers that no program of the benchmark calls. */
    for (int each = 0; each < RULES; each++)
        rules[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 600 + each, RULES - each, 0);
    rules[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    rules[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "filter");
}

int main(int count, char **words) {
    unsigned long namespaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWCGROUP;
    char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
    char users[64], groups[64];
    int status;

    if (count < 2)
        return 125;
    snprintf(users, sizeof users, "0 %u 1", geteuid());
    snprintf(groups, sizeof groups, "0 %u 1", getegid());
    long child = syscall(SYS_clone, namespaces | SIGCHLD, NULL, NULL, NULL, NULL);
    must(child, "clone");
    if (child == 0) {
        must(prctl(PR_SET_PDEATHSIG, SIGKILL), "end with the parent");
        put("/proc/self/setgroups", "deny");
        put("/proc/self/uid_map", users);
        put("/proc/self/gid_map", groups);
        make_root();
        must(setsid(), "session");
        filter();
        execve(words[1], words + 1, environment);
        must(-1, words[1]);
    }
    must(waitpid(child, &status, 0), "wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
