//! Answers the sandbox's questions for names, and asks nobody.
//!
//! A name that may be reached is answered with the address that stands for it; every other does not exist. So nothing
//! that the sandbox asks leaves the machine.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
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
    if query.query_type() == RecordType::A {
        match names.address_of(&name) {
            Some(address) => {
                response.add_answer(Record::from_rdata(query.name().clone(), TTL, RData::A(A(address))));
            }
            None => response.metadata.response_code = ResponseCode::ServFail,
        }
    }
    Asked::Known
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
