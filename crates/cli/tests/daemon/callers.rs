//! Keys: what each may do, see and have.

use std::collections::BTreeMap;
use std::time::Duration;

use offleash_daemon::{
    ALLOW_PTRACE_LABEL, ApiKey, Caller, CreateRequest, Daemon, DaemonConfig, DaemonError, EventKind, KeyStore,
    ListFilter, Quota, Scope, Scopes, VisibleState,
};

use super::world::{World, create, output, test, within};

fn caller(key_id: &str, scope: Scope, quota: Quota) -> Caller {
    Caller {
        key_id: key_id.to_owned(),
        scopes: Scopes(vec![scope]),
        quota,
        tools: None,
    }
}

#[test]
fn nobody_sees_or_changes_the_sandboxes_of_others() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let owner = caller("k1", Scope::Create, Quota::default());
        let other = caller("k2", Scope::Create, Quota::default());
        let made = within(daemon.create(&owner, CreateRequest::default())).await.unwrap();
        let id = made.id.as_str();
        let refused = [
            daemon.get(&other, id).err(),
            daemon.kill(&other, id).await.err(),
            daemon.set_timeout(&other, id, 1).await.err(),
            daemon.refresh(&other, id, None).await.err(),
            daemon.connect(&other, id, None).await.err(),
            daemon.pause(&other, id).await.err(),
            daemon.resume(&other, id, None).await.err(),
            daemon.set_network(&other, id, Default::default()).await.err(),
            daemon.metrics(&other, id, None, None).await.err(),
            daemon.logs(&other, id, Default::default()).await.err(),
        ];
        for (number, error) in refused.iter().enumerate() {
            assert!(
                matches!(error, Some(DaemonError::NotFound { .. })),
                "{number}: {error:?}"
            );
        }
        let filter = ListFilter::default();
        assert_eq!(daemon.list(&other, &filter).unwrap().sandboxes, []);
        assert_eq!(daemon.events(&other, Some(id), 0, false, 10).await.unwrap(), []);
        let reader = caller("k1", Scope::Read, Quota::default());
        assert_eq!(
            daemon.list(&reader, &filter).unwrap().sandboxes,
            std::slice::from_ref(&made)
        );
        assert!(matches!(
            daemon.kill(&reader, id).await,
            Err(DaemonError::Forbidden { .. })
        ));
        let create = daemon.create(&reader, CreateRequest::default()).await;
        assert!(matches!(create, Err(DaemonError::Forbidden { .. })));
        let admin = caller("k3", Scope::Admin, Quota::default());
        assert_eq!(daemon.list(&admin, &filter).unwrap().total_running, 1);
        within(daemon.kill(&admin, id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_quota_is_kept_by_creates_at_the_same_time() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let quota = Quota {
            sandboxes: Some(2),
            ..Quota::default()
        };
        let owner = caller("k1", Scope::Create, quota);
        let mut making = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let (daemon, owner) = (daemon.clone(), owner.clone());
            making.spawn(async move { within(daemon.create(&owner, CreateRequest::default())).await });
        }
        let (made, refused): (Vec<_>, Vec<_>) = making.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!((made.len(), refused.len()), (2, 4));
        let exceeded = |error: &DaemonError| matches!(error, DaemonError::QuotaExceeded { what: "sandboxes", .. });
        assert!(
            refused.iter().all(|refused| refused.as_ref().is_err_and(exceeded)),
            "{refused:?}"
        );
        let memory = Quota {
            memory_mib: Some(100),
            ..Quota::default()
        };
        let poor = daemon
            .create(&caller("k2", Scope::Create, memory), CreateRequest::default())
            .await;
        assert!(matches!(poor, Err(DaemonError::QuotaExceeded { .. })), "{poor:?}");
        let id = made[0].as_ref().unwrap().id.clone();
        within(daemon.kill(&owner, &id)).await.unwrap();
        within(daemon.drain()).await;
        drop(daemon);
        let again = world.daemon().await;
        within(again.create(&owner, CreateRequest::default())).await.unwrap();
    });
}

#[test]
fn a_quota_of_cpus_is_kept_by_sandboxes_that_were_paused() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        // Each has two of them.
        let quota = Quota {
            cpus: Some(4),
            ..Quota::default()
        };
        let keys = KeyStore::open(Some(&world.site.state())).unwrap();
        let (_, key) = keys.create("k", Scopes(vec![Scope::Create]), quota).unwrap();
        let owner = caller(&key.id, Scope::Create, quota);
        let mut ids = Vec::new();
        for _ in 0..4 {
            let request = CreateRequest {
                auto_resume: true,
                ..CreateRequest::default()
            };
            let made = within(daemon.create(&owner, request)).await.unwrap();
            within(daemon.pause(&owner, &made.id)).await.unwrap();
            ids.push(made.id);
        }
        let mut resuming = tokio::task::JoinSet::new();
        for id in ids.clone() {
            let (daemon, owner) = (daemon.clone(), owner.clone());
            resuming.spawn(async move { within(daemon.resume(&owner, &id, None)).await.map(|_| ()) });
        }
        let exceeded = |error: &DaemonError| matches!(error, DaemonError::QuotaExceeded { what: "CPUs", .. });
        let (resumed, refused): (Vec<_>, Vec<_>) = resuming.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!((resumed.len(), refused.len()), (2, 2), "{refused:?}");
        assert!(
            refused.iter().all(|refused| refused.as_ref().is_err_and(exceeded)),
            "{refused:?}"
        );
        assert_eq!((daemon.counts().running, daemon.counts().paused), (2, 2));

        let state = |id: &String| daemon.get(&owner, id).unwrap().state;
        let paused = ids.iter().find(|id| state(id) == VisibleState::Paused).unwrap();
        let running = ids.iter().find(|id| state(id) == VisibleState::Running).unwrap();
        // Neither does it come back by another way, nor by somebody else who has no quota.
        let admin = caller("k2", Scope::Admin, Quota::default());
        for refused in [
            within(daemon.connect(&owner, paused, None)).await.err(),
            within(daemon.connect(&admin, paused, None)).await.err(),
            within(daemon.supervisor(paused)).await.err(),
            within(daemon.create(&owner, CreateRequest::default())).await.err(),
        ] {
            assert!(refused.as_ref().is_some_and(exceeded), "{refused:?}");
        }
        assert_eq!(state(paused), VisibleState::Paused);
        within(daemon.pause(&owner, running)).await.unwrap();
        within(daemon.supervisor(paused)).await.unwrap();
        assert_eq!(state(paused), VisibleState::Running);
    });
}

#[test]
fn an_overloaded_machine_resumes_nothing() {
    test(async {
        let world = World::new();
        let me = Caller::local();
        let daemon = world.daemon().await;
        let made = super::world::create_with(&daemon, |request| request.auto_resume = true).await;
        within(daemon.pause(&me, &made.id)).await.unwrap();
        drop(daemon);
        let daemon = world
            .daemon_with(|config: &mut DaemonConfig| config.admission.min_memory_mib = u64::MAX)
            .await;
        for refused in [
            within(daemon.resume(&me, &made.id, None)).await.err(),
            within(daemon.connect(&me, &made.id, None)).await.err(),
            within(daemon.supervisor(&made.id)).await.err(),
        ] {
            let overloaded = matches!(refused, Some(DaemonError::Overloaded { what: "memory", .. }));
            assert!(overloaded, "{refused:?}");
        }
        assert_eq!(daemon.get(&me, &made.id).unwrap().state, VisibleState::Paused);
    });
}

#[test]
fn an_overloaded_machine_refuses_at_once() {
    test(async {
        let world = World::new();
        let daemon = world
            .daemon_with(|config: &mut DaemonConfig| config.admission.min_memory_mib = u64::MAX)
            .await;
        let refused = daemon.create(&Caller::local(), CreateRequest::default()).await;
        assert!(
            matches!(refused, Err(DaemonError::Overloaded { what: "memory", .. })),
            "{refused:?}"
        );
        assert!(world.is_empty());
        drop(daemon);
        let daemon = world
            .daemon_with(|config: &mut DaemonConfig| config.max_sandboxes = 1)
            .await;
        create(&daemon).await;
        let refused = daemon.create(&Caller::local(), CreateRequest::default()).await;
        assert!(matches!(refused, Err(DaemonError::Full { most: 1 })), "{refused:?}");
    });
}

#[test]
fn keys_are_made_used_and_revoked_while_the_daemon_runs() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let keys = KeyStore::open(Some(&world.site.state())).unwrap();
        let (key, row) = keys
            .create("laptop", Scopes(vec![Scope::Create]), Quota::default())
            .unwrap();
        assert_eq!(daemon.authenticate(key.reveal()).unwrap().key_id, row.id);
        let mut wrong = key.reveal().to_owned();
        let last = if wrong.pop() == Some('0') { '1' } else { '0' };
        wrong.push(last);
        let prefix = &key.reveal()[..20];
        for bad in [
            "",
            "e2b_",
            prefix,
            &wrong,
            &key.reveal().to_uppercase(),
            &format!("{} ", key.reveal()),
        ] {
            assert!(
                matches!(daemon.authenticate(bad), Err(DaemonError::Unauthorized)),
                "{bad:?}"
            );
        }
        let stored = std::fs::read(world.registry().path()).unwrap();
        let secret = &key.reveal().as_bytes()[12..];
        assert!(!stored.windows(secret.len()).any(|window| window == secret));
        keys.revoke("laptop").unwrap();
        assert!(matches!(
            daemon.authenticate(key.reveal()),
            Err(DaemonError::Unauthorized)
        ));
        assert!(keys.revoke("laptop").is_err());
        assert_eq!(keys.list().unwrap().len(), 1);
    });
}

#[test]
fn sandboxes_of_a_key_end_with_it_if_that_is_asked_for() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let keys = KeyStore::open(Some(&world.site.state())).unwrap();
        assert!(keys.has_daemon().unwrap());
        let create = |name: &str| {
            keys.create(name, Scopes(vec![Scope::Create]), Quota::default())
                .unwrap()
        };
        let ((gone, row), (stays, _)) = (create("gone"), create("stays"));
        let caller = |key: &ApiKey| daemon.authenticate(key.reveal()).unwrap();
        let (gone, stays) = (caller(&gone), caller(&stays));
        let mut made = Vec::new();
        for caller in [&gone, &gone, &stays] {
            made.push(
                within(daemon.create(caller, CreateRequest::default()))
                    .await
                    .unwrap()
                    .id,
            );
        }
        within(daemon.pause(&gone, &made[1])).await.unwrap();
        keys.revoke("gone").unwrap();
        assert_eq!(keys.sandboxes_of(&row.id).unwrap(), 2);
        daemon.supervisor(&made[0]).await.unwrap();
        // The next daemon does it where none runs.
        world.close(daemon).await;
        assert_eq!(keys.revoke_with_sandboxes(&row.id).unwrap().id, row.id);
        let daemon = world.daemon().await;
        while keys.sandboxes_of(&row.id).unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ends = world.registry();
        for id in &made[..2] {
            let end = within(async {
                loop {
                    if let Some(end) = ends.end_of(id).unwrap() {
                        break end;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            let end = end.await;
            assert_eq!(end.kind, EventKind::Killed);
            let detail = end.detail.unwrap();
            assert!(detail.contains("as its key was removed"), "{detail}");
        }
        daemon.supervisor(&made[2]).await.unwrap();
        within(daemon.kill(&stays, &made[2])).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn lists_are_filtered_ordered_and_paged() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let mut ids = Vec::new();
        for number in 0..5 {
            let made = super::world::create_with(&daemon, |request| {
                request.metadata.insert("number".into(), number.to_string());
                request.metadata.insert("even".into(), (number % 2 == 0).to_string());
            });
            ids.push(made.await.id);
        }
        let list = |change: &dyn Fn(&mut ListFilter)| {
            let mut filter = ListFilter::default();
            change(&mut filter);
            let page = daemon.list(&me, &filter).unwrap();
            let ids: Vec<String> = page.sandboxes.iter().map(|view| view.id.clone()).collect();
            (ids, page.next)
        };
        let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
        assert_eq!(list(&|_| {}), (newest_first, None));
        assert_eq!(list(&|filter| filter.ascending = true).0, ids);
        assert_eq!(list(&|filter| filter.states = vec![VisibleState::Paused]).0, [""; 0]);
        let even = |filter: &mut ListFilter| {
            filter.metadata = BTreeMap::from([("even".into(), "false".into())]);
            filter.ascending = true;
        };
        assert_eq!(list(&even).0, [ids[1].clone(), ids[3].clone()]);
        assert_eq!(list(&|filter| filter.template = Some("other".into())).0, [""; 0]);
        for ascending in [true, false] {
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                let (page, next) = list(&|filter| {
                    filter.limit = 2;
                    filter.ascending = ascending;
                    filter.after.clone_from(&after);
                });
                seen.extend(page);
                after = next;
                if after.is_none() {
                    break;
                }
            }
            let mut expected = ids.clone();
            if !ascending {
                expected.reverse();
            }
            assert_eq!(seen, expected);
        }
        for limit in [0, 101] {
            let filter = ListFilter {
                limit,
                ..ListFilter::default()
            };
            assert!(matches!(daemon.list(&me, &filter), Err(DaemonError::Invalid { .. })));
        }
    });
}

#[test]
fn debuggers_are_given_to_the_owner_and_where_the_configuration_says_so() {
    test(async {
        let world = World::new();
        let daemon = world.daemon().await;
        let asking = |word: &str| CreateRequest {
            metadata: BTreeMap::from([(ALLOW_PTRACE_LABEL.to_owned(), word.to_owned())]),
            ..CreateRequest::default()
        };
        let other = caller("k1", Scope::Admin, Quota::default());
        let refused = within(daemon.create(&other, asking("true"))).await;
        assert!(matches!(refused, Err(DaemonError::NotAllowed { .. })), "{refused:?}");
        let wrong = within(daemon.create(&Caller::local(), asking("yes"))).await;
        assert!(matches!(wrong, Err(DaemonError::Invalid { .. })), "{wrong:?}");
        // What the search for leaks of a sanitizer is told, and what the sandbox sees of its memory.
        let script =
            "echo ${ASAN_OPTIONS-none}; awk '/^MemTotal/ { print $2 }' /proc/meminfo; cat /sys/fs/cgroup/memory.max";
        let found =
            async |daemon: &Daemon, id: &str| output(&within(daemon.supervisor(id)).await.unwrap(), script).await;
        let seen = |first: &str| format!("{first}\n524288\n536870912\n");
        let plain = within(daemon.create(&other, asking("false"))).await.unwrap();
        assert_eq!(found(&daemon, &plain.id).await, seen("detect_leaks=0"));
        let owned = within(daemon.create(&Caller::local(), asking("true"))).await.unwrap();
        assert_eq!(found(&daemon, &owned.id).await, seen("none"));
        for id in [&plain.id, &owned.id] {
            within(daemon.kill(&Caller::local(), id)).await.unwrap();
        }
        world.close(daemon).await;
        let daemon = world.daemon_with(|config| config.allow_ptrace = true).await;
        let allowed = within(daemon.create(&other, asking("true"))).await.unwrap();
        assert_eq!(found(&daemon, &allowed.id).await, seen("none"));
    });
}
