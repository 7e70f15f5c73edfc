//! The kernel's classic BPF machine, as far as the filter may use it; anything else is a failure of the test.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_LD, BPF_RET, BPF_W, sock_filter,
};

use crate::seccomp::emit::ARCHITECTURE;
use crate::seccomp::rule::low_half;

/// `struct seccomp_data`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) architecture: u32,
    pub(super) arguments: [u64; 6],
}

impl Call {
    pub(super) fn of(number: u32, arguments: [u64; 6]) -> Call {
        Call {
            number,
            architecture: ARCHITECTURE,
            arguments,
        }
    }

    /// The 32 bits at an offset, on a little-endian machine.
    fn at(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            16.. if offset.is_multiple_of(4) => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                low_half(if offset.is_multiple_of(8) {
                    argument
                } else {
                    argument >> 32
                })
            }
            _ => panic!("the filter reads at {offset}"),
        }
    }
}

/// What the program answers, and whether it looked at anything but the number and the architecture.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) action: u32,
    pub(super) looked_at_arguments: bool,
    pub(super) steps: usize,
}

pub(super) fn run(program: &[sock_filter], call: &Call) -> Answer {
    let (mut at, mut accumulator, mut looked_at_arguments, mut steps) = (0, 0_u32, false, 0);
    loop {
        let instruction = program[at];
        let operand = instruction.k;
        at += 1;
        steps += 1;
        let mut jump = |condition: bool| {
            at += usize::from(if condition { instruction.jt } else { instruction.jf });
        };
        match u32::from(instruction.code) {
            code if code == BPF_LD | BPF_W | BPF_ABS => {
                looked_at_arguments |= operand > 4;
                accumulator = call.at(operand);
            }
            code if code == BPF_ALU | BPF_AND => accumulator &= operand,
            code if code == BPF_JMP | BPF_JEQ => jump(accumulator == operand),
            code if code == BPF_JMP | BPF_JGE => jump(accumulator >= operand),
            code if code == BPF_JMP | BPF_JSET => jump(accumulator & operand != 0),
            code if code == BPF_JMP | BPF_JA => at += operand as usize,
            code if code == BPF_RET => {
                return Answer {
                    action: operand,
                    looked_at_arguments,
                    steps,
                };
            }
            code => panic!("instruction {code:#x} is not in the filter's repertoire"),
        }
    }
}
