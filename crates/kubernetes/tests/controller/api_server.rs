//! A stand-in for Kubernetes' API server, with its garbage collector, and a scheduler that knows nodes and pins.
//!
//! It keeps what a controller can rely on: versions of objects, conflicts, status apart from the rest, finalizers, lists and watches
//! with selectors, 410 for what is too old, and owners. Every body that is written is checked (`check`); what is wrong is refused and
//! remembered, so that a test fails that did not look.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{self, Answers, Asked};
use super::schemas::{self, Checker, matches, merge, without_version};

/// What names an object: group and plural, namespace, name.
type Key = (String, String, String);

/// Something that happened: to which object, what it was, what it is.
struct Change {
    version: u64,
    key: Key,
    before: Option<Value>,
    after: Option<Value>,
}

#[derive(Default)]
struct Cluster {
    objects: BTreeMap<Key, Value>,
    changes: Vec<Change>,
    version: u64,
    /// Watches from before this are told 410.
    oldest: u64,
    /// Counted up to end all watches.
    cuts: u64,
    next: u64,
    /// Nodes on which pods are put; those that are cordoned are in the second.
    cordoned: BTreeSet<String>,
    /// How many pods a namespace may have.
    quota: Option<usize>,
    /// Answers that are 500 or 409 instead: which method and path they begin with.
    faults: Vec<(String, String, u16)>,
    /// What was asked: method and path.
    asked: Vec<(String, String)>,
    violations: Vec<String>,
}

/// The stand-in.
#[derive(Clone)]
pub(crate) struct ApiServer {
    cluster: Arc<(Mutex<Cluster>, Condvar)>,
    check: Checker,
    pub(crate) address: SocketAddr,
}

impl Answers for ApiServer {
    fn answer(&self, asked: Asked, stream: TcpStream) {
        if asked.method == "GET"
            && asked
                .query
                .get("watch")
                .is_some_and(|watch| watch == "true" || watch == "1")
        {
            self.watch(&asked, &stream);
            return;
        }
        let (status, body) = self.ask(&asked).unwrap_or_else(|refusal| refusal);
        http::write(&stream, status, &body);
    }
}

/// A refusal as the API server words it.
fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message });
    (code, body)
}

impl ApiServer {
    /// One with these nodes.
    pub(crate) fn start(nodes: &[&str], check: Checker) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self {
            cluster: Arc::default(),
            check,
            address,
        };
        server.lock().version = 100;
        server.address = http::serve(Arc::new(server.clone()));
        for node in nodes {
            server.put("v1", "nodes", json!({ "metadata": { "name": node } }));
        }
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn lock(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.0.lock().unwrap()
    }

    /// Creates an object as a person would.
    pub(crate) fn put(&self, group: &str, plural: &str, mut object: Value) -> Value {
        if group.ends_with("agents.x-k8s.io") {
            object["apiVersion"] = json!(format!("{group}/v1beta1"));
        }
        let key = key_of(group, plural, &object);
        self.create(key, object).unwrap().1
    }

    pub(crate) fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (format!("{group}/{plural}"), namespace.to_owned(), name.to_owned());
        self.lock().objects.get(&key).cloned()
    }

    pub(crate) fn all(&self, group: &str, plural: &str) -> Vec<Value> {
        let wanted = format!("{group}/{plural}");
        let cluster = self.lock();
        cluster
            .objects
            .iter()
            .filter(|((kind, ..), _)| *kind == wanted)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Changes an object as a person or a kubelet would; status too.
    pub(crate) fn change(&self, group: &str, plural: &str, namespace: &str, name: &str, patch: &Value) {
        let key = (format!("{group}/{plural}"), namespace.to_owned(), name.to_owned());
        let mut cluster = self.lock();
        let mut object = cluster.objects[&key].clone();
        merge(&mut object, patch);
        cluster.store(&key, object);
        self.cluster.1.notify_all();
    }

    /// Deletes an object as a person would.
    pub(crate) fn delete(&self, group: &str, plural: &str, namespace: &str, name: &str) {
        let key = (format!("{group}/{plural}"), namespace.to_owned(), name.to_owned());
        self.lock().delete(&key);
        self.cluster.1.notify_all();
    }

    /// Takes a node from the scheduler, or gives it back, and tries those again that wait.
    pub(crate) fn cordon(&self, node: &str, is_cordoned: bool) {
        let mut cluster = self.lock();
        match is_cordoned {
            true => cluster.cordoned.insert(node.to_owned()),
            false => cluster.cordoned.remove(node),
        };
        let waiting: Vec<Key> = cluster
            .objects
            .keys()
            .filter(|(kind, ..)| kind == "v1/pods")
            .cloned()
            .collect();
        for key in waiting {
            let mut pod = cluster.objects[&key].clone();
            if pod["spec"]["nodeName"].is_null() {
                cluster.schedule(&mut pod);
                cluster.store(&key, pod);
            }
        }
        self.cluster.1.notify_all();
    }

    pub(crate) fn set_quota(&self, pods: Option<usize>) {
        self.lock().quota = pods;
    }

    /// Has requests fail once that begin so.
    pub(crate) fn fail_once(&self, method: &str, path: &str, status: u16) {
        self.lock().faults.push((method.to_owned(), path.to_owned(), status));
    }

    /// Ends all watches, and forgets what they could go on from.
    pub(crate) fn forget(&self) {
        let mut cluster = self.lock();
        cluster.version += 10;
        cluster.oldest = cluster.version;
        cluster.changes.clear();
        cluster.cuts += 1;
        self.cluster.1.notify_all();
    }

    /// How many requests of a method were for what begins so.
    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        let cluster = self.lock();
        cluster
            .asked
            .iter()
            .filter(|(asked, at)| asked == method && at.starts_with(path))
            .count()
    }

    /// Fails if something was written that the schemas do not take.
    pub(crate) fn assert_valid(&self) {
        let cluster = self.lock();
        assert!(cluster.violations.is_empty(), "{:#?}", cluster.violations);
    }

    fn ask(&self, asked: &Asked) -> Result<(u16, Value), (u16, Value)> {
        let target = Target::of(&asked.path)
            .ok_or_else(|| refusal(404, "NotFound", "the server could not find the requested resource"))?;
        self.note(asked)?;
        let told = format!("{} \"{}\" not found", target.kind, target.name);
        let absent = || refusal(404, "NotFound", &told);
        let sub = target.sub.clone();
        match (asked.method.as_str(), target.name.is_empty(), sub.as_str()) {
            ("GET", true, "") => Ok((200, self.list(&target, asked))),
            ("GET", false, "") => self
                .lock()
                .objects
                .get(&target.key())
                .cloned()
                .map(|found| (200, found))
                .ok_or_else(absent),
            ("POST", true, "") => {
                let object = self.checked(&target, asked.body.clone())?;
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                self.create((target.kind, target.namespace, name), object)
            }
            ("PATCH", false, "" | "status") => self.patch(&target, asked),
            ("PUT", false, "" | "status") => {
                let object = self.checked(&target, asked.body.clone())?;
                let mut cluster = self.lock();
                let there = cluster.objects.get(&target.key()).ok_or_else(absent)?;
                conflict(there, &object)?;
                let stored = cluster.store(&target.key(), object);
                self.cluster.1.notify_all();
                Ok((200, stored))
            }
            ("DELETE", false, "") => {
                let mut cluster = self.lock();
                let there = cluster.objects.get(&target.key()).ok_or_else(absent)?;
                let wanted = &asked.body["preconditions"]["uid"];
                if !wanted.is_null() && *wanted != there["metadata"]["uid"] {
                    return Err(refusal(409, "Conflict", "the UID in the precondition does not match"));
                }
                cluster.delete(&target.key());
                self.cluster.1.notify_all();
                Ok((
                    200,
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }),
                ))
            }
            _ => Err(refusal(
                405,
                "MethodNotAllowed",
                "the server does not allow this method",
            )),
        }
    }

    fn note(&self, asked: &Asked) -> Result<(), (u16, Value)> {
        let mut cluster = self.lock();
        cluster.asked.push((asked.method.clone(), asked.path.clone()));
        let fault = cluster
            .faults
            .iter()
            .position(|(method, path, _)| *method == asked.method && asked.path.starts_with(path));
        match fault.map(|place| cluster.faults.remove(place)) {
            Some((.., 409)) => Err(refusal(409, "Conflict", "the object has been modified")),
            Some((.., status)) => Err(refusal(status, "InternalError", "a fault that the test asked for")),
            None => Ok(()),
        }
    }

    fn checked(&self, target: &Target, object: Value) -> Result<Value, (u16, Value)> {
        let checked = schemas::check_kind(&target.kind, &object).and_then(|()| (self.check)(&target.kind, &object));
        checked.map(|()| object.clone()).map_err(|wrong| {
            let told = format!("{} {}: {wrong}: {object}", target.kind, target.name);
            self.lock().violations.push(told.clone());
            refusal(422, "Invalid", &told)
        })
    }

    fn create(&self, mut key: Key, mut object: Value) -> Result<(u16, Value), (u16, Value)> {
        let mut cluster = self.lock();
        let meta = object["metadata"].as_object_mut().unwrap();
        if let Some(prefix) = meta
            .get("generateName")
            .and_then(Value::as_str)
            .filter(|_| key.2.is_empty())
        {
            key.2 = format!("{prefix}{:05}", cluster.next);
        }
        if cluster.objects.contains_key(&key) {
            return Err(refusal(
                409,
                "AlreadyExists",
                &format!("{} \"{}\" already exists", key.0, key.2),
            ));
        }
        cluster.next += 1;
        meta.insert("name".to_owned(), json!(key.2));
        if !key.1.is_empty() {
            meta.insert("namespace".to_owned(), json!(key.1));
        }
        meta.insert(
            "uid".to_owned(),
            json!(format!("00000000-0000-4000-8000-{:012}", cluster.next)),
        );
        meta.insert("creationTimestamp".to_owned(), json!("2026-11-29T00:00:00Z"));
        meta.insert("generation".to_owned(), json!(1));
        let has_status = key.0.contains("agents.x-k8s.io");
        if has_status {
            object.as_object_mut().unwrap().remove("status");
        }
        if key.0 == "v1/pods" && !object["metadata"]["labels"]["offleash/sandbox-uid"].is_null() {
            let there = cluster
                .objects
                .keys()
                .filter(|(kind, namespace, _)| *kind == key.0 && *namespace == key.1)
                .count();
            if cluster.quota.is_some_and(|quota| there >= quota) {
                let told = format!(
                    "pods \"{}\" is forbidden: exceeded quota: agents, requested: pods=1, used: pods={there}",
                    key.2
                );
                return Err(refusal(403, "Forbidden", &told));
            }
            cluster.schedule(&mut object);
        }
        let stored = cluster.store(&key, object);
        self.cluster.1.notify_all();
        Ok((201, stored))
    }

    fn patch(&self, target: &Target, asked: &Asked) -> Result<(u16, Value), (u16, Value)> {
        let is_apply = asked
            .head
            .get("content-type")
            .is_some_and(|kind| kind.contains("apply-patch"));
        let there = self.lock().objects.get(&target.key()).cloned();
        let Some(there) = there else {
            let absent = refusal(
                404,
                "NotFound",
                &format!("{} \"{}\" not found", target.kind, target.name),
            );
            return match is_apply {
                true => self
                    .checked(target, asked.body.clone())
                    .and_then(|object| self.create(target.key(), object)),
                false => Err(absent),
            };
        };
        conflict(&there, &asked.body)?;
        let mut patch = asked.body.as_object().cloned().unwrap_or_default();
        match target.sub.as_str() {
            "status" => patch.retain(|name, _| name == "status"),
            _ => drop(patch.remove("status")),
        }
        let mut object = there.clone();
        merge(&mut object, &Value::Object(patch));
        let object = self.checked(target, object)?;
        let mut cluster = self.lock();
        if cluster
            .objects
            .get(&target.key())
            .is_none_or(|now| now["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"])
        {
            return Err(refusal(409, "Conflict", "the object has been modified"));
        }
        let stored = cluster.store(&target.key(), object);
        self.cluster.1.notify_all();
        Ok((200, stored))
    }

    fn list(&self, target: &Target, asked: &Asked) -> Value {
        let cluster = self.lock();
        let selected =
            |(key, object): (&Key, &Value)| (target.has(key) && matches(object, &asked.query)).then(|| object.clone());
        let items: Vec<Value> = cluster.objects.iter().filter_map(selected).collect();
        json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": cluster.version.to_string() }, "items": items })
    }

    /// Tells what changes, until it is cut or the client goes.
    fn watch(&self, asked: &Asked, mut stream: &TcpStream) {
        let Some(target) = Target::of(&asked.path) else { return };
        let mut from: u64 = asked
            .query
            .get("resourceVersion")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let mut cluster = self.lock();
        let cuts = cluster.cuts;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
        if from < cluster.oldest {
            let gone = refusal(410, "Expired", "too old resource version").1;
            let _gone = writeln!(stream, "{}", json!({ "type": "ERROR", "object": gone }));
            return;
        }
        loop {
            let mut lines = String::new();
            for change in cluster
                .changes
                .iter()
                .filter(|change| change.version > from && target.has(&change.key))
            {
                let was = change
                    .before
                    .as_ref()
                    .is_some_and(|before| matches(before, &asked.query));
                let after = change.after.as_ref().filter(|after| matches(after, &asked.query));
                let (kind, object) = match (was, after) {
                    (false, None) => continue,
                    (false, Some(after)) => ("ADDED", after.clone()),
                    (true, Some(after)) => ("MODIFIED", after.clone()),
                    (true, None) => {
                        let mut last = change.after.clone().or_else(|| change.before.clone()).unwrap();
                        last["metadata"]["resourceVersion"] = json!(change.version.to_string());
                        ("DELETED", last)
                    }
                };
                lines += &format!("{}\n", json!({ "type": kind, "object": object }));
            }
            from = cluster.version;
            drop(cluster);
            if stream.write_all(format!("{lines}\n").as_bytes()).is_err() {
                return;
            }
            cluster = self.lock();
            if cluster.cuts != cuts {
                return;
            }
            if cluster.version == from {
                cluster = self.cluster.1.wait_timeout(cluster, Duration::from_secs(5)).unwrap().0;
                if cluster.cuts != cuts {
                    return;
                }
            }
        }
    }
}

impl Cluster {
    /// Stores an object with a new version, and takes it away where nothing keeps it.
    fn store(&mut self, key: &Key, mut object: Value) -> Value {
        let before = self.objects.get(key).cloned();
        if let Some(before) = &before {
            if before["spec"] != object["spec"] {
                object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_u64().unwrap_or(1) + 1);
            }
            if without_version(before) == without_version(&object) {
                return before.clone();
            }
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let has_finalizers = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        let is_over = !object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers;
        self.changes.push(Change {
            version: self.version,
            key: key.clone(),
            before,
            after: (!is_over).then(|| object.clone()),
        });
        if is_over {
            self.objects.remove(key);
            self.collect(&object);
        } else {
            self.objects.insert(key.clone(), object.clone());
        }
        object
    }

    fn delete(&mut self, key: &Key) {
        let mut object = self.objects[key].clone();
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-29T00:00:01Z");
            self.store(key, object);
        }
    }

    /// Deletes what an object owned that is gone.
    fn collect(&mut self, owner: &Value) {
        let uid = &owner["metadata"]["uid"];
        let owned = |object: &Value| {
            object["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one["uid"] == *uid))
        };
        let keys: Vec<Key> = self
            .objects
            .iter()
            .filter(|(_, object)| owned(object))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.delete(&key);
        }
    }

    /// Puts a pod on the first node that takes it, or says why there is none.
    fn schedule(&self, pod: &mut Value) {
        let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let pinned = terms[0]["matchFields"][0]["values"][0].as_str();
        let nodes = self
            .objects
            .keys()
            .filter(|(kind, ..)| kind == "v1/nodes")
            .map(|(.., name)| name);
        let mut fitting =
            nodes.filter(|node| !self.cordoned.contains(*node) && pinned.is_none_or(|pinned| pinned == *node));
        match fitting.next().cloned() {
            Some(node) => {
                pod["spec"]["nodeName"] = json!(node);
                pod["status"] =
                    json!({ "phase": "Running", "conditions": [{ "type": "PodScheduled", "status": "True" }] });
            }
            None => {
                let told = "0/2 nodes are available: 2 node(s) were unschedulable.";
                let condition =
                    json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": told });
                pod["status"] = json!({ "phase": "Pending", "conditions": [condition] });
            }
        }
    }
}

/// 409 where a write is of what is no more.
fn conflict(there: &Value, written: &Value) -> Result<(), (u16, Value)> {
    let wanted = &written["metadata"]["resourceVersion"];
    match wanted.is_null() || *wanted == there["metadata"]["resourceVersion"] {
        true => Ok(()),
        false => Err(refusal(
            409,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version",
        )),
    }
}

fn key_of(group: &str, plural: &str, object: &Value) -> Key {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (format!("{group}/{plural}"), text("namespace"), text("name"))
}

/// What a path names.
struct Target {
    /// Group and plural.
    kind: String,
    namespace: String,
    name: String,
    sub: String,
}

impl Target {
    fn of(path: &str) -> Option<Self> {
        let mut words: Vec<&str> = path.trim_matches('/').split('/').collect();
        let group = match *words.first()? {
            "api" => words.drain(..2).next_back()?.to_owned(),
            "apis" => words.drain(..3).nth(1)?.to_owned(),
            _ => return None,
        };
        let namespace = match *words.first()? {
            "namespaces" if words.len() > 2 => words.drain(..2).next_back()?.to_owned(),
            _ => String::new(),
        };
        let mut words = words.into_iter();
        let plural = words.next()?;
        let known = [
            "nodes",
            "pods",
            "services",
            "endpointslices",
            "leases",
            "runtimeclasses",
            "sandboxes",
            "sandboxclaims",
            "sandboxtemplates",
            "sandboxwarmpools",
        ];
        known.contains(&plural).then(|| Self {
            kind: format!("{group}/{plural}"),
            namespace,
            name: words.next().unwrap_or_default().to_owned(),
            sub: words.next().unwrap_or_default().to_owned(),
        })
    }

    fn key(&self) -> Key {
        (self.kind.clone(), self.namespace.clone(), self.name.clone())
    }

    fn has(&self, key: &Key) -> bool {
        key.0 == self.kind && (self.namespace.is_empty() || key.1 == self.namespace)
    }
}
