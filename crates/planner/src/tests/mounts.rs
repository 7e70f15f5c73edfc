use super::*;

#[test]
fn mounts_are_checked_at_both_ends() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("data/file"), "");
    write(&host.cwd.join("work/src/a"), "");
    fs::create_dir(host.cwd.join("state")).unwrap();
    let data = host.cwd.join("data");
    let work = host.cwd.join("work");
    let try_mount = |source: &Path, target: &Path, access| {
        let mut spec = spec(&host, "");
        spec.mounts = vec![MountSpec {
            source: source.into(),
            target: target.into(),
            access,
        }];
        plan_of(&spec, &host, "true")
    };
    for target in [
        "/data",
        "/mnt/deep/data",
        "/home/user/data",
        "/tmp/data",
        "/etc/data",
        "/home/user",
    ] {
        let plan = try_mount(&data, Path::new(target), MountAccess::Rw);
        assert!(plan.is_ok(), "{target}: {:?}", plan.unwrap_err());
    }
    assert!(try_mount(&data, &work.join("src"), MountAccess::Ro).is_ok());
    for target in [
        "data",
        "/",
        "/proc",
        "/proc/x",
        "/dev/shm/x",
        "/sys",
        "/usr",
        "/etc",
        "/bin",
        "/a/../b",
        "/a/./b",
        "/usr/nonexistent",
        "/usr/bin/env/x",
        "/bin/x",
        "/var",
        "/home",
    ] {
        let error = try_mount(&data, Path::new(target), MountAccess::Ro).unwrap_err();
        assert!(matches!(error, PlanError::Target { .. }), "{target}: {error}");
    }
    for target in [work.clone(), work.join("none"), work.join("src/a"), host.cwd.clone()] {
        assert!(
            matches!(
                try_mount(&data, &target, MountAccess::Ro),
                Err(PlanError::Target { .. })
            ),
            "{target:?}"
        );
    }
    for (source, access) in [
        ("/", MountAccess::Ro),
        ("/proc", MountAccess::Ro),
        ("/dev", MountAccess::Ro),
        ("/etc", MountAccess::Rw),
        ("/usr", MountAccess::Rw),
        ("state", MountAccess::Ro),
        ("~", MountAccess::Rw),
        (".", MountAccess::Rw),
    ] {
        let error = try_mount(Path::new(source), Path::new("/data"), access).unwrap_err();
        assert!(matches!(error, PlanError::Reserved { .. }), "{source}: {error}");
    }
    let missing = try_mount(Path::new("none"), Path::new("/data"), MountAccess::Ro).unwrap_err();
    assert!(matches!(
        missing,
        PlanError::Unreachable {
            role: "mount source",
            ..
        }
    ));
}

#[test]
fn the_order_in_which_mounts_are_written_does_not_matter() {
    let (_directory, host) = host_with_home();
    write(&host.cwd.join("outer/inner/x"), "");
    let mount = |source: &str, target: &str| MountSpec {
        source: host.cwd.join(source),
        target: target.into(),
        access: MountAccess::Ro,
    };
    let mut spec = spec(&host, "");
    spec.mounts = vec![mount("outer/inner", "/data/inner"), mount("outer", "/data")];
    let first = plan_of(&spec, &host, "true").unwrap().0;
    spec.mounts.reverse();
    assert_eq!(first.entries, plan_of(&spec, &host, "true").unwrap().0.entries);
    spec.mounts.push(mount("home", "/data"));
    assert!(
        matches!(plan_of(&spec, &host, "true"), Err(PlanError::Target { .. })),
        "one target, two sources"
    );
}

#[test]
fn our_own_state_is_hidden_where_a_mount_would_show_it() {
    let (_directory, host) = host_with_home();
    fs::create_dir(host.cwd.join("state")).unwrap();
    let mount = MountSpec {
        source: host.cwd.clone(),
        target: "/all".into(),
        access: MountAccess::Ro,
    };
    let spec = SandboxSpec {
        mounts: vec![mount],
        ..SandboxSpec::default()
    };
    let (plan, _) = plan_of(&spec, &host, "true").unwrap();
    assert!(is_hidden(&plan, Path::new("/all/state")));
}

#[test]
fn an_empty_directory_is_made_where_asked() {
    let (_directory, host) = host_with_home();
    let mut spec = spec(&host, "");
    spec.tmpfs = vec![TmpfsSpec {
        target: "/scratch".into(),
        size: Some(Bytes::mib(1)),
    }];
    let (plan, _) = plan_of(&spec, &host, "true").unwrap();
    let node = &at(&plan, Path::new("/scratch")).unwrap().node;
    assert!(matches!(
        node,
        PlanNode::Tmpfs {
            size: Some(Bytes(1_048_576)),
            ..
        }
    ));
    spec.tmpfs[0].target = "/proc/x".into();
    assert!(matches!(plan_of(&spec, &host, "true"), Err(PlanError::Target { .. })));
}

#[test]
fn a_volume_is_where_a_mount_could_be_and_is_found_before() {
    use offleash_core::spec::VolumeMount;
    use offleash_core::volume::{VolumeKey, VolumeQuota, VolumeUsage};

    let (_directory, mut host) = host_with_home();
    let data = host.cwd.join("state/volumes/v/data");
    fs::create_dir_all(&data).unwrap();
    let mount = |target: &str, access| VolumeMount {
        volume: VolumeKey::Name("v".parse().unwrap()),
        target: target.into(),
        access,
    };
    let with = |host: &PlanningHost, mount: VolumeMount| {
        let mut spec = spec(host, "");
        spec.volumes = vec![mount];
        plan_of(&spec, host, "true")
    };
    let unknown = with(&host, mount("/data", MountAccess::Rw)).unwrap_err();
    assert!(matches!(unknown, PlanError::UnknownVolume { .. }), "{unknown}");
    host.volumes = vec![FoundVolume {
        key: VolumeKey::Name("v".parse().unwrap()),
        name: "v".parse().unwrap(),
        data: data.clone(),
        quota: VolumeQuota::default(),
        used: VolumeUsage { bytes: 7, inodes: 1 },
    }];
    // It lies in the state directory, of which nothing else is ever shown.
    let (plan, _) = with(&host, mount("/data", MountAccess::Rw)).unwrap();
    let written = plan.written_volumes();
    assert_eq!(
        (written.len(), &written[0].directory, written[0].used.bytes),
        (1, &data, 7)
    );
    let (plan, _) = with(&host, mount("/data", MountAccess::Ro)).unwrap();
    assert!(plan.written_volumes().is_empty());
    for target in [
        "data",
        "/",
        "/usr",
        "/proc/x",
        "/sys",
        "/a/../b",
        "/usr/none",
        "/bin/x",
        "/home",
    ] {
        let error = with(&host, mount(target, MountAccess::Rw)).unwrap_err();
        assert!(matches!(error, PlanError::Target { .. }), "{target}: {error}");
    }
}
