//! Answers the sandbox's questions for names, and asks nobody.
//!
//! A name that may be reached is answered with the address that stands for it; every other does not exist. So nothing
//! that the sandbox asks leaves the machine. There are no records with keys for encrypted greetings (`HTTPS`, `SVCB`),
//! which would keep the name of a connection from being compared.

use std::net::{IpAddr, Ipv4Addr};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use offleash_core::network::{DomainName, Host, RuleVerdict};

use crate::names::Names;
use crate::policy::Policy;

/// How long an answer holds, in seconds; the address stands for the name as long as the sandbox lives.
const TTL: u32 = 60;
/// What fits a UDP answer to a client that does not say more (RFC 1035, 4.2.1).
const SMALLEST: usize = 512;

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A name that may be reached.
    Known,
    /// A name that may not, as it was asked for.
    Refused(String),
    /// Not a question that has an answer.
    Malformed,
}

/// The answer to a question, if it deserves one.
pub(crate) fn answer(question: &[u8], policy: &Policy, names: &mut Names) -> (Option<Vec<u8>>, Asked) {
    let Ok(message) = Message::from_vec(question) else {
        return (None, Asked::Malformed);
    };
    if message.metadata.message_type != MessageType::Query {
        return (None, Asked::Malformed);
    }
    let mut response = Message::response(message.metadata.id, message.metadata.op_code);
    response.metadata.recursion_desired = message.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    if let Some(edns) = &message.edns {
        let mut own = Edns::new();
        own.set_max_payload(edns.max_payload().clamp(512, 1232));
        response.set_edns(own);
    }
    if message.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        // RFC 6891, 6.1.3; the client asks again as it was asked before.
        response.metadata.response_code = ResponseCode::BADVERS;
        if let Some(own) = &mut response.edns {
            own.set_rcode_high(ResponseCode::BADVERS.high());
        }
        return (response.to_vec().ok(), Asked::Malformed);
    }
    let asked = match message.queries.as_slice() {
        [query] if message.metadata.op_code == OpCode::Query && query.query_class() == DNSClass::IN => {
            response.add_query(query.clone());
            respond(query, policy, names, &mut response)
        }
        [_] => {
            response.metadata.response_code = ResponseCode::NotImp;
            Asked::Malformed
        }
        _ => {
            response.metadata.response_code = ResponseCode::FormErr;
            Asked::Malformed
        }
    };
    (response.to_vec().ok(), asked)
}

/// What fits into a UDP answer to `question`: the answer itself, or a truncated one, upon which the client asks by TCP.
pub(crate) fn for_udp(question: &[u8], answer: Vec<u8>) -> Vec<u8> {
    let room = Message::from_vec(question).ok().and_then(|message| message.edns);
    let room = room.map_or(SMALLEST, |edns| usize::from(edns.max_payload()).clamp(SMALLEST, 1232));
    if answer.len() <= room {
        return answer;
    }
    let truncated = Message::from_vec(&answer)
        .ok()
        .and_then(|message| message.truncate().to_vec().ok());
    truncated.unwrap_or_default()
}

fn respond(query: &Query, policy: &Policy, names: &mut Names, response: &mut Message) -> Asked {
    if query.query_type() == RecordType::PTR
        && let Some(address) = reversed(query.name())
        && Names::is_synthetic(address)
    {
        match names
            .name_at(address)
            .and_then(|name| Name::from_ascii(format!("{name}.")).ok())
        {
            Some(name) => {
                let record = Record::from_rdata(query.name().clone(), TTL, RData::PTR(PTR(name)));
                response.add_answer(record);
            }
            None => response.metadata.response_code = ResponseCode::NXDomain,
        }
        return Asked::Known;
    }
    let text = query.name().to_ascii().trim_end_matches('.').to_owned();
    let Some(name) = domain_name(query) else {
        response.metadata.response_code = ResponseCode::NXDomain;
        return Asked::Refused(text);
    };
    if policy.reaches(&name) == RuleVerdict::Deny {
        response.metadata.response_code = ResponseCode::NXDomain;
        return Asked::Refused(text);
    }
    // Other kinds of records have no answer here, and that says that the name exists: clients then ask for `A`.
    // Whoever asks for any of them is given one (RFC 8482, 4.1).
    if [RecordType::A, RecordType::ANY].contains(&query.query_type()) {
        let Some(address) = names.address_of(&name) else {
            response.metadata.response_code = ResponseCode::ServFail;
            return Asked::Refused(text);
        };
        response.add_answer(Record::from_rdata(query.name().clone(), TTL, RData::A(A(address))));
    }
    Asked::Known
}

/// The address whose name is asked for (RFC 1035, 3.5).
fn reversed(name: &Name) -> Option<Ipv4Addr> {
    match name.parse_arpa_name().ok()?.addr() {
        IpAddr::V4(address) if name.num_labels() == 6 => Some(address),
        _ => None,
    }
}

/// The name in question, if it is one that could be reached: labels joined by dots must read as those labels again.
fn domain_name(query: &Query) -> Option<DomainName> {
    let mut text = Vec::new();
    for label in query.name().iter() {
        if label.contains(&b'.') {
            return None;
        }
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend_from_slice(label);
    }
    match Host::parse_bytes(&text) {
        Ok(Host::Name(name)) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr as _;

    use hickory_proto::rr::Name;
    use offleash_core::network::{NetworkPolicy, NetworkRule};
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Unknown;

    fn policy() -> Policy {
        let rule = |verdict, text| NetworkRule::parse(verdict, text).unwrap();
        let rules = vec![
            rule(RuleVerdict::Allow, "example.com"),
            rule(RuleVerdict::Allow, "*.wide.example:8443"),
            rule(RuleVerdict::Deny, "no.wide.example"),
        ];
        Policy::new(
            NetworkPolicy {
                rules,
                ..NetworkPolicy::default()
            },
            Vec::new(),
            Unknown::Denied,
        )
    }

    fn question(name: &str, kind: RecordType) -> Message {
        let mut message = Message::query();
        message.metadata.id = 7;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message
    }

    fn asked(message: &Message) -> (Message, Asked) {
        let (answer, asked) = answer(&message.to_vec().unwrap(), &policy(), &mut Names::default());
        (Message::from_vec(&answer.unwrap()).unwrap(), asked)
    }

    #[test]
    fn an_allowed_name_has_an_address_of_its_own_and_keeps_its_spelling() {
        for name in ["example.com.", "EXAMPLE.com.", "a.WIDE.example."] {
            let sent = question(name, RecordType::A);
            let (answer, asked) = asked(&sent);
            assert_eq!(asked, Asked::Known, "{name}");
            assert_eq!(
                (answer.metadata.id, answer.metadata.response_code),
                (7, ResponseCode::NoError)
            );
            assert!(
                answer.queries[0].name().eq_case(sent.queries[0].name()),
                "{name}: {sent:?}"
            );
            let RData::A(A(address)) = answer.answers[0].data else {
                panic!("{name}: {answer:?}");
            };
            assert!(Names::is_synthetic(address), "{name}: {address}");
        }
    }

    #[test]
    fn other_records_of_it_are_empty_so_that_clients_ask_for_its_address() {
        for kind in [
            RecordType::AAAA,
            RecordType::HTTPS,
            RecordType::SVCB,
            RecordType::MX,
            RecordType::TXT,
            RecordType::PTR,
        ] {
            let (answer, asked) = asked(&question("example.com.", kind));
            assert_eq!(asked, Asked::Known, "{kind}");
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError, "{kind}");
            assert!(answer.answers.is_empty(), "{kind}");
        }
    }

    #[test]
    fn a_question_for_any_record_is_one_for_an_address() {
        let (answer, _) = asked(&question("example.com.", RecordType::ANY));
        assert!(matches!(answer.answers[0].data, RData::A(_)), "{answer:?}");
    }

    #[test]
    fn an_address_that_stands_for_a_name_leads_back_to_it() {
        let mut names = Names::default();
        let address = names.address_of(&"a.wide.example".parse().unwrap()).unwrap();
        let [a, b, c, d] = address.octets();
        let mut ask = |name: &str| {
            let asked = question(name, RecordType::PTR);
            let (answer, asked) = answer(&asked.to_vec().unwrap(), &policy(), &mut names);
            (Message::from_vec(&answer.unwrap()).unwrap(), asked)
        };
        let (back, _) = ask(&format!("{d}.{c}.{b}.{a}.in-addr.arpa."));
        let RData::PTR(PTR(name)) = &back.answers[0].data else {
            panic!("{back:?}");
        };
        assert_eq!(name.to_ascii(), "a.wide.example.");
        let (unknown, asked) = ask("9.9.18.198.in-addr.arpa.");
        assert_eq!(
            (unknown.metadata.response_code, asked),
            (ResponseCode::NXDomain, Asked::Known)
        );
        for other in [
            "1.0.0.10.in-addr.arpa.",
            "18.198.in-addr.arpa.",
            "1.ip6.arpa.",
            "x.18.198.in-addr.arpa.",
        ] {
            let (answer, asked) = ask(other);
            assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain, "{other}");
            assert!(matches!(asked, Asked::Refused(_)), "{other}");
        }
    }

    #[test]
    fn another_version_of_the_extensions_is_not_spoken() {
        let mut asked = question("example.com.", RecordType::A);
        let mut edns = Edns::new();
        edns.set_version(1);
        asked.set_edns(edns);
        let (answer, _) = answer(&asked.to_vec().unwrap(), &policy(), &mut Names::default());
        let answer = answer.unwrap();
        // The low bits of the code stand in the head, the high ones in the extension: 16.
        assert_eq!(answer[3] & 15, 0);
        let answer = Message::from_vec(&answer).unwrap();
        assert_eq!(answer.edns.unwrap().rcode_high(), 1);
        assert!(answer.answers.is_empty());
    }

    #[test]
    fn names_of_services_and_of_machines_are_names() {
        for name in [
            "_http._tcp.wide.example.",
            "a--b.wide.example.",
            "xn--bcher-kva.wide.example.",
            "0.wide.example.",
        ] {
            let (answer, asked) = asked(&question(name, RecordType::A));
            assert_eq!((asked, answer.answers.len()), (Asked::Known, 1), "{name}");
        }
    }

    #[test]
    fn when_there_are_too_many_names_the_next_is_told_to_nobody() {
        let mut names = Names::default();
        let mut last = None;
        for number in 0..=crate::names::MAX_COUNT {
            let asked = question(&format!("n{number}.wide.example."), RecordType::A);
            last = Some(answer(&asked.to_vec().unwrap(), &policy(), &mut names));
        }
        let (answer, asked) = last.unwrap();
        assert_eq!(
            Message::from_vec(&answer.unwrap()).unwrap().metadata.response_code,
            ResponseCode::ServFail
        );
        assert!(matches!(asked, Asked::Refused(_)));
    }

    #[test]
    fn every_other_name_does_not_exist() {
        for name in [
            "example.org.",
            "www.example.com.",
            "wide.example.",
            "no.wide.example.",
            "xwide.example.",
            "com.",
            ".",
            "10.0.0.1.",
            "2130706433.",
        ] {
            let (answer, asked) = asked(&question(name, RecordType::A));
            assert!(matches!(asked, Asked::Refused(_)), "{name}: {asked:?}");
            assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain, "{name}");
            assert!(answer.answers.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_dot_within_a_label_joins_nothing() {
        let mut message = question("example.com.", RecordType::A);
        let joined = Name::from_labels([b"example.com".as_slice()]).unwrap();
        message.queries[0].set_name(joined);
        assert!(matches!(asked(&message).1, Asked::Refused(_)));
    }

    #[test]
    fn what_is_not_one_question_of_the_internet_is_told_so() {
        let mut two = question("example.com.", RecordType::A);
        two.add_query(Query::query(Name::from_str("evil.org.").unwrap(), RecordType::A));
        assert_eq!(asked(&two).0.metadata.response_code, ResponseCode::FormErr);
        let mut chaos = question("version.bind.", RecordType::TXT);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert_eq!(asked(&chaos).0.metadata.response_code, ResponseCode::NotImp);
        let mut response = question("example.com.", RecordType::A);
        response.metadata.message_type = MessageType::Response;
        let (answer, asked) = answer(&response.to_vec().unwrap(), &policy(), &mut Names::default());
        assert_eq!((answer, asked), (None, Asked::Malformed));
    }

    #[test]
    fn an_answer_that_does_not_fit_a_datagram_is_cut_and_says_so() {
        let asked = question("example.com.", RecordType::A);
        let mut long = Message::response(7, OpCode::Query);
        let name = Name::from_str("example.com.").unwrap();
        for number in 0..100_u8 {
            long.add_answer(Record::from_rdata(
                name.clone(),
                TTL,
                RData::A(A([198, 18, 1, number].into())),
            ));
        }
        let cut = for_udp(&asked.to_vec().unwrap(), long.to_vec().unwrap());
        assert!(cut.len() <= SMALLEST);
        assert!(Message::from_vec(&cut).unwrap().metadata.truncation);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_nothing_panics_and_no_address_is_given_without_a_rule(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut names = Names::default();
            let (answer, _) = answer(&bytes, &policy(), &mut names);
            if let Some(answer) = answer {
                prop_assert!(for_udp(&bytes, answer).len() <= 1232);
            }
        }

        #[test]
        fn spoiled_questions_do_no_harm(at in 0_usize..40, byte in any::<u8>()) {
            let mut bytes = question("example.com.", RecordType::A).to_vec().unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = answer(&bytes, &policy(), &mut Names::default());
        }
    }
}
