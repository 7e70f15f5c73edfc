//! Webhooks of a daemon, to a receiver that checks what it is sent, fails, is silent, lies and leads elsewhere.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use offleash_daemon::{Caller, DaemonConfig, DaemonError, WebhookRequest, WebhookUpdate, WebhooksConfig};
use serde_json::Value;

use super::support::{processes, skip};
use super::world::{World, create, create_with, eventually, output, test, within};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Taken,
    /// 500.
    Failure,
    /// Nothing, as long as the other side waits.
    Silence,
    /// What is no answer of HTTP.
    Nonsense,
    /// 302 to here.
    ElsewhereAt(String),
}

/// A message as it came, and what was answered.
#[derive(Debug, Clone)]
struct Heard {
    id: String,
    at: String,
    signature: String,
    /// What E2B's receivers look at: webhook, delivery, signature.
    e2b: Option<[String; 3]>,
    body: Vec<u8>,
    answer: Answer,
}

impl Heard {
    fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn kind(&self) -> String {
        self.value()["type"].as_str().unwrap().to_owned()
    }

    fn sandbox(&self) -> String {
        self.value()["sandbox_id"].as_str().unwrap().to_owned()
    }
}

/// A program that is told.
#[derive(Clone)]
struct Receiver {
    url: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    /// What is answered next, each once; then `usual`.
    next: Arc<Mutex<VecDeque<Answer>>>,
    usual: Arc<Mutex<Answer>>,
}

impl Receiver {
    fn start(usual: Answer, next: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Self {
            url: format!("http://{}/hook?tenant=a", listener.local_addr().unwrap()),
            heard: Arc::default(),
            next: Arc::new(Mutex::new(next.into_iter().collect())),
            usual: Arc::new(Mutex::new(usual)),
        };
        let taken = receiver.clone();
        // Ends with the process: nothing of it is to be cleaned up.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let taken = taken.clone();
                std::thread::spawn(move || taken.take(stream.unwrap()));
            }
        });
        receiver
    }

    fn take(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(processes::TIMEOUT)).unwrap();
        let mut reader = BufReader::new(stream);
        let mut fields = BTreeMap::new();
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        assert_eq!(first.trim(), "POST /hook?tenant=a HTTP/1.1");
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim().split_once(": ") else {
                break;
            };
            fields.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let mut body = vec![0; fields["content-length"].parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let answer = self.next.lock().unwrap().pop_front();
        let answer = answer.unwrap_or_else(|| self.usual.lock().unwrap().clone());
        self.heard.lock().unwrap().push(Heard {
            id: fields["offleash-webhook-id"].clone(),
            at: fields["offleash-timestamp"].clone(),
            signature: fields["offleash-signature"].clone(),
            e2b: fields.contains_key("e2b-signature").then(|| {
                assert_eq!(fields["e2b-signature-version"], "v1");
                ["e2b-webhook-id", "e2b-delivery-id", "e2b-signature"].map(|name| fields[name].clone())
            }),
            body,
            answer: answer.clone(),
        });
        let said = match answer {
            Answer::Taken => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Answer::Failure => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
            Answer::Nonsense => "220 mail.example ESMTP\r\n\r\n".to_owned(),
            Answer::ElsewhereAt(url) => {
                format!("HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n")
            }
            Answer::Silence => {
                // Until the other side has enough.
                let _gone = reader.read(&mut [0]);
                return;
            }
        };
        // Who has left need not hear it.
        let _told = reader.get_mut().write_all(said.as_bytes());
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    /// What was taken, by type and sandbox, in its order.
    fn taken(&self) -> Vec<(String, String)> {
        let all = self.heard().into_iter().filter(|heard| heard.answer == Answer::Taken);
        all.map(|heard| (heard.kind(), heard.sandbox())).collect()
    }

    /// Has a daemon tell it.
    fn config(&self) -> impl FnOnce(&mut DaemonConfig) {
        let url = self.url.clone();
        move |config| {
            config.webhooks = WebhooksConfig {
                urls: vec![url],
                secret: SECRET.into(),
                answer_timeout: Duration::from_secs(1),
                ..WebhooksConfig::default()
            };
        }
    }
}

/// That one id always has one body, and each try its signature.
fn assert_honest(heard: &[Heard]) {
    let mut bodies = BTreeMap::new();
    for one in heard {
        let before = bodies.entry(&one.id).or_insert(&one.body);
        assert_eq!(*before, &one.body, "{}", one.id);
        assert_eq!(one.value()["id"], *one.id);
    }
    if Command::new("openssl").arg("version").output().is_err() {
        return skip("there is no openssl to check signatures with");
    }
    for one in heard {
        let signed = [one.at.as_bytes(), b".", &one.body].concat();
        let mut command = Command::new("openssl");
        command.args(["dgst", "-sha256", "-r", "-hmac", SECRET]);
        let made = processes::feed(&mut command, signed);
        let made = String::from_utf8(made.stdout).unwrap();
        let digest = made.split(' ').next().unwrap();
        assert_eq!(one.signature, format!("v1={digest}"));
    }
}

#[test]
fn a_message_is_sent_again_after_a_failure_silence_and_lies_and_follows_nobody_elsewhere() {
    test(async {
        let trap = TcpListener::bind("127.0.0.1:0").unwrap();
        trap.set_nonblocking(true).unwrap();
        let elsewhere = Answer::ElsewhereAt(format!("http://{}/", trap.local_addr().unwrap()));
        // Three tries of the first message, three of the second.
        let answers = [
            Answer::Failure,
            Answer::Silence,
            Answer::Taken,
            elsewhere,
            Answer::Nonsense,
        ];
        let receiver = Receiver::start(Answer::Taken, answers);
        let world = World::new();
        let daemon = world.daemon_with(receiver.config()).await;
        let made = create(&daemon).await;
        within(daemon.kill(&Caller::local(), &made.id)).await.unwrap();
        let told = |kind: &str| (format!("sandbox.lifecycle.{kind}"), made.id.clone());
        let all = [told("created"), told("killed")];
        eventually("the messages", || (receiver.taken() == all).then_some(())).await;
        let heard = receiver.heard();
        let ids: Vec<&str> = heard.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(heard.len(), 6, "{heard:?}");
        assert!(
            ids[..3].iter().all(|id| *id == ids[0]) && ids[3..].iter().all(|id| *id == ids[3]),
            "{ids:?}"
        );
        assert_ne!(ids[0], ids[3]);
        assert_honest(&heard);
        assert_eq!(trap.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        eventually("the counts", || {
            (daemon.webhook_counts()["delivered"] == 2).then_some(())
        })
        .await;
        assert_eq!(
            (daemon.webhook_counts()["failed"], daemon.webhook_counts()["dropped"]),
            (0, 0)
        );
        world.emptied().await;
    });
}

#[test]
fn the_next_daemon_goes_on_with_what_was_not_taken_and_says_nothing_twice_under_another_id() {
    test(async {
        let receiver = Receiver::start(Answer::Failure, []);
        let world = World::new();
        let me = Caller::local();
        let first = world.daemon_with(receiver.config()).await;
        let one = create(&first).await;
        let other = create(&first).await;
        eventually("a try", || (!receiver.heard().is_empty()).then_some(())).await;
        world.close(first).await;
        assert_eq!(receiver.taken(), []);

        *receiver.usual.lock().unwrap() = Answer::Taken;
        let second = world.daemon_with(receiver.config()).await;
        within(second.kill(&me, &one.id)).await.unwrap();
        let told = |kind: &str, id: &str| (format!("sandbox.lifecycle.{kind}"), id.to_owned());
        let all = [
            told("created", &one.id),
            told("created", &other.id),
            told("killed", &one.id),
        ];
        eventually("what the first one left", || {
            (receiver.taken().len() >= all.len()).then_some(())
        })
        .await;
        assert_eq!(receiver.taken(), all);
        // What was taken last is on record before anything else is told.
        eventually("the record", || {
            (second.webhook_counts()["delivered"] == 3).then_some(())
        })
        .await;
        within(second.kill(&me, &other.id)).await.unwrap();
        eventually("its end", || (receiver.taken().len() == 4).then_some(())).await;
        world.close(second).await;

        let third = world.daemon_with(receiver.config()).await;
        let last = create(&third).await;
        eventually("news", || {
            receiver.taken().contains(&told("created", &last.id)).then_some(())
        })
        .await;
        assert_honest(&receiver.heard());
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        for heard in receiver.heard().iter().filter(|heard| heard.answer == Answer::Taken) {
            *taken.entry(heard.id.clone()).or_default() += 1;
        }
        // The last one of a daemon may come again, by its id; no other.
        let again: usize = taken.values().map(|count| count - 1).sum();
        assert!(taken.len() == 5 && again <= 1, "{taken:?}");
        within(third.kill(&me, &last.id)).await.unwrap();
        world.emptied().await;
    });
}

#[test]
fn a_question_stays_open_beyond_its_daemon_and_is_told_again_by_its_id() {
    test(async {
        let receiver = Receiver::start(Answer::Taken, []);
        let world = World::new();
        let me = Caller::local();
        let patient = |config: &mut DaemonConfig| {
            receiver.config()(config);
            config.tools.ask_timeout = Duration::from_secs(600);
        };
        let first = world.daemon_with(patient).await;
        let made = create_with(&first, |request| {
            request.network.ask_out = vec!["asked.example".to_owned()]
        })
        .await;
        let supervisor = first.supervisor(&made.id).await.unwrap();
        let connect =
            "exec 2>/dev/null; bash -c 'exec 3<>/dev/tcp/asked.example/443 && cat <&3' && echo ended || echo refused";
        let connecting = tokio::spawn(async move { output(&supervisor, connect).await });
        let questions = || -> Vec<Heard> {
            let all = receiver.heard().into_iter();
            all.filter(|heard| heard.kind() == "sandbox.approval.requested")
                .collect()
        };
        eventually("the question", || (questions().len() == 1).then_some(())).await;
        let before = within(first.approvals(&me)).await.unwrap();
        world.close(first).await;

        let second = world.daemon_with(patient).await;
        let after = within(second.approvals(&me)).await.unwrap();
        assert_eq!(
            (after.len(), &after[0].id, &after[0].about),
            (1, &before[0].id, &before[0].about)
        );
        assert!(!connecting.is_finished());
        eventually("the same question", || (questions().len() == 2).then_some(())).await;
        let told = questions();
        assert_eq!(told[0].id, told[1].id);
        assert_eq!(told[0].value()["event_data"]["approval"], *before[0].id);
        let denied = offleash_core::approval::ApprovalAnswer::Denied;
        within(second.decide(&me, &after[0].id, denied)).await.unwrap();
        assert_eq!(within(connecting).await.unwrap(), "refused\n");
        within(second.kill(&me, &made.id)).await.unwrap();
        world.emptied().await;
    });
}

/// What a webhook that is told of everything but changes is asked for with.
fn request(url: &str) -> WebhookRequest {
    let types = ["created", "killed"].map(|word| format!("sandbox.lifecycle.{word}"));
    WebhookRequest {
        name: "mine".to_owned(),
        url: url.to_owned(),
        enabled: true,
        types: types.to_vec(),
        secret: SECRET.to_owned(),
    }
}

#[test]
fn who_registers_a_webhook_is_told_of_own_sandboxes_until_it_is_changed_or_gone() {
    test(async {
        let (receiver, second) = (Receiver::start(Answer::Taken, []), Receiver::start(Answer::Taken, []));
        let world = World::new();
        let daemon = world.daemon().await;
        let me = Caller::local();
        let stranger = Caller {
            key_id: "k00000000000".to_owned(),
            ..Caller::local()
        };
        let before = create(&daemon).await;
        let hook = within(daemon.register_webhook(&me, request(&receiver.url)))
            .await
            .unwrap();
        // Another key may not name this machine, and has no part of what is others'.
        let refused = within(daemon.register_webhook(&stranger, request(&receiver.url))).await;
        assert!(
            matches!(refused, Err(DaemonError::Invalid { field: "url", .. })),
            "{refused:?}"
        );
        assert!(matches!(
            daemon.webhook(&stranger, &hook.id),
            Err(DaemonError::UnknownWebhook { .. })
        ));
        assert_eq!(daemon.webhooks(&stranger).unwrap(), []);

        let first = create(&daemon).await;
        let told = |kind: &str, id: &str| (format!("sandbox.lifecycle.{kind}"), id.to_owned());
        eventually("the first", || {
            (receiver.taken() == [told("created", &first.id)]).then_some(())
        })
        .await;
        let heard = receiver.heard();
        let [webhook, delivery, signature] = heard[0].e2b.clone().unwrap();
        assert_eq!((webhook, delivery.len(), signature.len()), (hook.id.clone(), 36, 43));
        assert_eq!(heard[0].value()["sandbox_team_id"], "local");
        assert_honest(&heard);

        // What is changed holds at once: it goes elsewhere, and not at all.
        let elsewhere = WebhookUpdate {
            url: Some(second.url.clone()),
            ..WebhookUpdate::default()
        };
        within(daemon.update_webhook(&me, &hook.id, elsewhere)).await.unwrap();
        within(daemon.kill(&me, &first.id)).await.unwrap();
        eventually("the second", || {
            (second.taken() == [told("killed", &first.id)]).then_some(())
        })
        .await;
        let execution = &second.heard()[0].value()["event_data"]["execution"];
        assert!(
            execution["started_at"].is_string() && execution["execution_time"].is_number(),
            "{execution}"
        );
        let enabled = |enabled| WebhookUpdate {
            enabled: Some(enabled),
            ..WebhookUpdate::default()
        };
        within(daemon.update_webhook(&me, &hook.id, enabled(false)))
            .await
            .unwrap();
        let silent = create(&daemon).await;
        within(daemon.kill(&me, &silent.id)).await.unwrap();
        // It is passed over before what comes next is told.
        eventually("what is passed over", || {
            (daemon.webhook_counts()["delivered"] == 2).then_some(())
        })
        .await;
        world.close(daemon).await;

        // The next daemon knows it.
        let next = world.daemon().await;
        within(next.update_webhook(&me, &hook.id, enabled(true))).await.unwrap();
        let last = create(&next).await;
        eventually("the last", || {
            second.taken().contains(&told("created", &last.id)).then_some(())
        })
        .await;
        within(next.remove_webhook(&me, &hook.id)).await.unwrap();
        assert!(matches!(
            next.webhook(&me, &hook.id),
            Err(DaemonError::UnknownWebhook { .. })
        ));
        within(next.kill(&me, &last.id)).await.unwrap();
        within(next.kill(&me, &before.id)).await.unwrap();
        world.emptied().await;
        assert!(!second.taken().contains(&told("killed", &last.id)));
        assert_eq!(receiver.heard().len(), 1);
    });
}
