//! Tables, chains and rules as nftables wants them: each rule is a list of expressions, which read into a register,
//! compare it, or do something.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::network::netlink::{MessagePayload, RequestBatch, RequestStep};

/// The name of our table in each family.
const TABLE: &str = "offleash";

/// Bounds of a transaction (`NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`) and the part of the kernel that it is for.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u8 = 10;

/// Requests (`NFT_MSG_…`).
const NEW_TABLE: u8 = 0;
const NEW_CHAIN: u8 = 3;
const NEW_RULE: u8 = 6;

/// Attributes, by the enumeration of the header that they are from.
mod table {
    pub(super) const NAME: u16 = 1;
}
mod chain {
    pub(super) const TABLE: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const HOOK: u16 = 4;
    pub(super) const TYPE: u16 = 7;
    pub(super) const HOOK_NUMBER: u16 = 1;
    pub(super) const HOOK_PRIORITY: u16 = 2;
}
mod rule {
    pub(super) const TABLE: u16 = 1;
    pub(super) const CHAIN: u16 = 2;
    pub(super) const EXPRESSIONS: u16 = 4;
}
mod expression {
    pub(super) const ELEMENT: u16 = 1;
    pub(super) const NAME: u16 = 1;
    pub(super) const DATA: u16 = 2;
}
mod data {
    pub(super) const VALUE: u16 = 1;
    pub(super) const VERDICT: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
}

/// Registers: one that decides, and two of 16 bytes.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;

/// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// Where TCP and UDP have the port that a packet goes to.
const DESTINATION_PORT: u32 = 2;

/// `NFT_META_L4PROTO`.
const TRANSPORT_PROTOCOL: u32 = 16;
/// `NFT_META_MARK`.
const META_MARK: u32 = 3;
/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// Where TCP has its flags, those that say what kind of packet it is (FIN, SYN, RST, ACK), and those of a first one.
const FLAGS: u32 = 13;
const KIND_OF_PACKET: u8 = 0x17;
const FIRST_PACKET: u8 = 0x02;

#[derive(Debug, Clone, Copy)]
enum RuleComparison {
    Equal = 0,
    NotEqual = 1,
}

/// What is filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RuleProtocol {
    Tcp = 6,
    Udp = 17,
}

/// Where packets are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainHook {
    /// As they come in again over `lo`, before anything else.
    Held,
    /// As the namespace's own programs send them; addresses may be rewritten here.
    Leaving,
    /// As they come in again over `lo`.
    Arriving,
}

impl ChainHook {
    fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Leaving => "leaving",
            Self::Arriving => "arriving",
        }
    }

    /// Its type, hook (`NF_INET_…`) and priority (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_MANGLE`), and what it needs.
    fn place(self) -> (&'static str, u32, i32, &'static str) {
        match self {
            Self::Held => ("filter", 0, -160, "packet filter (NF_TABLES)"),
            Self::Leaving => ("nat", 3, -100, "address translation (NF_NAT)"),
            Self::Arriving => ("filter", 0, -150, "packet filter (NF_TABLES)"),
        }
    }
}

/// How packets of a family look and what it calls things.
#[derive(Debug, Clone)]
pub(super) struct HeaderLayout {
    /// `NFPROTO_…`.
    family: u8,
    /// Where the header has the packet's destination.
    destination: u32,
    /// With what destinations begin that are loopback.
    loopback: Vec<u8>,
    /// The address of the listener.
    listener: Vec<u8>,
    own: Vec<u8>,
    /// ICMP's codes for "port unreachable" and "administratively prohibited".
    port_unreachable: u8,
    prohibited: u8,
    needs: &'static str,
}

impl HeaderLayout {
    pub(super) fn ipv4(own: Ipv4Addr) -> Self {
        Self {
            family: 2,
            destination: 16,
            loopback: vec![127],
            listener: Ipv4Addr::LOCALHOST.octets().to_vec(),
            own: own.octets().to_vec(),
            port_unreachable: 3,
            prohibited: 13,
            needs: "packet filter (NF_TABLES, NF_TABLES_IPV4)",
        }
    }

    pub(super) fn ipv6(own: Ipv6Addr) -> Self {
        let loopback = Ipv6Addr::LOCALHOST.octets().to_vec();
        Self {
            family: 10,
            destination: 24,
            loopback: loopback.clone(),
            listener: loopback,
            own: own.octets().to_vec(),
            port_unreachable: 4,
            prohibited: 1,
            needs: "packet filter (NF_TABLES, NF_TABLES_IPV6)",
        }
    }

    /// `struct nfgenmsg`: family, version, and a number that only transactions use.
    fn header(&self) -> [u8; 4] {
        [self.family, 0, 0, 0]
    }
}

/// A transaction that is being written.
#[derive(Debug)]
pub(super) struct RulesetWriter(RequestBatch);

impl RulesetWriter {
    pub(super) fn new() -> Self {
        let mut requests = RequestBatch::default();
        let step = RequestStep {
            does: "beginning a transaction of packet filters",
            needs: Some("packet filter (NF_TABLES)"),
        };
        requests.push(step, BATCH_BEGIN, 0, |request| {
            request.header(&[0, 0, 0, SUBSYSTEM]);
        });
        Self(requests)
    }

    pub(super) fn finish(mut self) -> RequestBatch {
        // One answer for all; not for the end, which only newer kernels answer (Linux 6.10).
        self.0.await_last();
        let step = RequestStep {
            does: "ending a transaction of packet filters",
            needs: None,
        };
        self.0.push(step, BATCH_END, 0, |request| {
            request.header(&[0, 0, 0, SUBSYSTEM]);
        });
        self.0
    }

    /// A new table for the family of `layout`.
    pub(super) fn table(&mut self, layout: HeaderLayout) -> TableWriter<'_> {
        let step = RequestStep {
            does: "making a table of packet filters",
            needs: Some(layout.needs),
        };
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.0.push(step, kind(NEW_TABLE), flags, |request| {
            request.header(&layout.header()).text(table::NAME, TABLE);
        });
        TableWriter {
            requests: &mut self.0,
            layout,
        }
    }
}

/// A table that is being written.
#[derive(Debug)]
pub(super) struct TableWriter<'a> {
    requests: &'a mut RequestBatch,
    layout: HeaderLayout,
}

impl TableWriter<'_> {
    pub(super) fn chain(&mut self, which: ChainHook) {
        let (of_type, hook, priority, part) = which.place();
        let step = RequestStep {
            does: "making a chain of packet filters",
            needs: Some(part),
        };
        let layout = &self.layout;
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.requests.push(step, kind(NEW_CHAIN), flags, |request| {
            request
                .header(&layout.header())
                .text(chain::TABLE, TABLE)
                .text(chain::NAME, which.name())
                .nested(chain::HOOK, |place| {
                    place
                        .number(chain::HOOK_NUMBER, hook)
                        .number(chain::HOOK_PRIORITY, priority.cast_unsigned());
                })
                .text(chain::TYPE, of_type);
        });
    }

    /// Appends a rule, of which `does` says what it is for and `needs` which part of the kernel it needs.
    pub(super) fn rule(
        &mut self,
        to: ChainHook,
        does: &'static str,
        needs: &'static str,
        fill: impl FnOnce(&mut RuleWriter<'_, '_>),
    ) {
        let step = RequestStep {
            does,
            needs: Some(needs),
        };
        let layout = &self.layout;
        let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND;
        self.requests.push(step, kind(NEW_RULE), flags, |request| {
            request
                .header(&layout.header())
                .text(rule::TABLE, TABLE)
                .text(rule::CHAIN, to.name())
                .nested(rule::EXPRESSIONS, |expressions| {
                    fill(&mut RuleWriter { expressions, layout });
                });
        });
    }
}

fn kind(request: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, request])
}

/// A rule that is being written: what must hold, in turn, and then what happens.
#[derive(Debug)]
pub(super) struct RuleWriter<'a, 'b> {
    expressions: &'a mut MessagePayload<'b>,
    layout: &'a HeaderLayout,
}

impl RuleWriter<'_, '_> {
    pub(super) fn protocol(&mut self, protocol: RuleProtocol) -> &mut Self {
        self.expression("meta", |meta| {
            meta.number(2, TRANSPORT_PROTOCOL).number(1, FIRST);
        });
        self.compare(RuleComparison::Equal, &[protocol as u8])
    }

    pub(super) fn for_port(&mut self, port: u16) -> &mut Self {
        self.holds(
            TRANSPORT_HEADER,
            DESTINATION_PORT,
            RuleComparison::Equal,
            &port.to_be_bytes(),
        )
    }

    pub(super) fn not_for_port(&mut self, port: u16) -> &mut Self {
        self.holds(
            TRANSPORT_HEADER,
            DESTINATION_PORT,
            RuleComparison::NotEqual,
            &port.to_be_bytes(),
        )
    }

    pub(super) fn for_loopback(&mut self) -> &mut Self {
        self.destination(RuleComparison::Equal, &self.layout.loopback)
    }

    pub(super) fn not_for_loopback(&mut self) -> &mut Self {
        self.destination(RuleComparison::NotEqual, &self.layout.loopback)
    }

    pub(super) fn for_own(&mut self) -> &mut Self {
        self.destination(RuleComparison::Equal, &self.layout.own)
    }

    pub(super) fn not_for_own(&mut self) -> &mut Self {
        self.destination(RuleComparison::NotEqual, &self.layout.own)
    }

    pub(super) fn accept(&mut self) -> &mut Self {
        self.expression("immediate", |immediate| {
            immediate.number(1, VERDICT).nested(2, |content| {
                content.nested(data::VERDICT, |verdict| {
                    verdict.number(data::VERDICT_CODE, ACCEPT);
                });
            });
        })
    }

    /// Holds the packet in queue 0 until whoever has it has said what becomes of it ([`crate::network::queue`]). What is
    /// passed on goes to the next chain, not to the next rule.
    ///
    /// By the target of iptables, which more kernels have than an expression of nftables for it.
    pub(super) fn hold(&mut self) -> &mut Self {
        // `struct xt_NFQ_info`, the number of the queue, aligned as `XT_ALIGN` does it.
        let queue = [0; 8];
        self.expression("target", |target| {
            target.text(1, "NFQUEUE").number(2, 0).attribute(3, &queue);
        })
    }

    /// Goes on only with the first packet of a connection.
    pub(super) fn first_packet(&mut self) -> &mut Self {
        self.expression("payload", |payload| {
            payload
                .number(1, FIRST)
                .number(2, TRANSPORT_HEADER)
                .number(3, FLAGS)
                .number(4, 1);
        });
        self.expression("bitwise", |bitwise| {
            bitwise
                .number(1, FIRST)
                .number(2, FIRST)
                .number(3, 1)
                .nested(4, |mask| {
                    mask.attribute(data::VALUE, &[KIND_OF_PACKET]);
                })
                .nested(5, |xor| {
                    xor.attribute(data::VALUE, &[0]);
                });
        });
        self.compare(RuleComparison::Equal, &[FIRST_PACKET])
    }

    /// Goes on only with packets that are marked so.
    pub(super) fn marked(&mut self, mark: u32) -> &mut Self {
        self.expression("meta", |meta| {
            meta.number(2, META_MARK).number(1, FIRST);
        });
        self.compare(RuleComparison::Equal, &mark.to_ne_bytes())
    }

    /// Drops the packet of TCP and answers it with a reset (`NFT_REJECT_TCP_RST`).
    pub(super) fn reset(&mut self) -> &mut Self {
        self.expression("reject", |reject| {
            reject.number(1, 1);
        })
    }

    /// Hands a packet to the socket that listens on the loopback address and `port`, or to the one that it accepted
    /// for this connection. If there is none, the rule ends here.
    pub(super) fn proxy(&mut self, port: u16) -> &mut Self {
        let family = u32::from(self.layout.family);
        self.load(FIRST, &self.layout.listener)
            .load(SECOND, &port.to_be_bytes())
            .expression("tproxy", |proxy| {
                proxy.number(1, family).number(2, FIRST).number(3, SECOND);
            })
    }

    /// Rewrites the destination into the loopback address and `port`.
    pub(super) fn redirect(&mut self, port: u16) -> &mut Self {
        self.load(FIRST, &port.to_be_bytes()).expression("redir", |redirect| {
            redirect.number(1, FIRST);
        })
    }

    /// Drops the packet and tells its sender that nobody is at this port.
    pub(super) fn refuse_port(&mut self) -> &mut Self {
        self.reject(self.layout.port_unreachable)
    }

    /// Drops the packet and tells its sender that this is prohibited.
    pub(super) fn refuse_all(&mut self) -> &mut Self {
        self.reject(self.layout.prohibited)
    }

    fn reject(&mut self, code: u8) -> &mut Self {
        // Type 0 is an ICMP message of the table's family (`NFT_REJECT_ICMP_UNREACH`).
        self.expression("reject", |reject| {
            reject.number(1, 0).attribute(2, &[code]);
        })
    }

    fn destination(&mut self, comparison: RuleComparison, beginning: &[u8]) -> &mut Self {
        self.holds(NETWORK_HEADER, self.layout.destination, comparison, beginning)
    }

    /// Goes on only if the bytes at `offset` of a header compare so.
    fn holds(&mut self, header: u32, offset: u32, comparison: RuleComparison, bytes: &[u8]) -> &mut Self {
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        self.expression("payload", |payload| {
            payload
                .number(1, FIRST)
                .number(2, header)
                .number(3, offset)
                .number(4, length);
        });
        self.compare(comparison, bytes)
    }

    fn compare(&mut self, comparison: RuleComparison, bytes: &[u8]) -> &mut Self {
        self.expression("cmp", |compare| {
            compare
                .number(1, FIRST)
                .number(2, comparison as u32)
                .nested(3, |content| {
                    content.attribute(data::VALUE, bytes);
                });
        })
    }

    fn load(&mut self, register: u32, bytes: &[u8]) -> &mut Self {
        self.expression("immediate", |immediate| {
            immediate.number(1, register).nested(2, |content| {
                content.attribute(data::VALUE, bytes);
            });
        })
    }

    /// Appends an expression. Its attributes are numbered as in the enumeration `nft_NAME_attributes`.
    pub(super) fn expression(&mut self, name: &str, fill: impl FnOnce(&mut MessagePayload<'_>)) -> &mut Self {
        self.expressions.nested(expression::ELEMENT, |element| {
            element.text(expression::NAME, name).nested(expression::DATA, fill);
        });
        self
    }
}
