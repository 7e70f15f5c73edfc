//! What is watched: each figure, its unit, and how it adds up over a window.

use std::fmt;
use std::str::FromStr;

use super::MonitorRuleError;

/// How a figure is had from samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureKind {
    /// A total that grows: how much it grew within the window.
    Count,
    /// CPU time that grows, in microseconds: percent of one CPU, on average over a whole window.
    CpuTime,
    /// A value of the moment: the smallest one over a whole window, so that a peak is none.
    Level,
}

macro_rules! figures {
    ($($name:ident $word:literal $kind:ident $unit:literal $doc:literal;)*) => {
        /// Something that is known of a sandbox outside of it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum MonitorFigure { $(#[doc = $doc] $name,)* }

        impl MonitorFigure {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word for it.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What a threshold counts.
            pub fn unit(self) -> &'static str {
                match self { $(Self::$name => $unit,)* }
            }

            /// What it is, as one sentence without a full stop.
            pub fn doc(self) -> &'static str {
                match self { $(Self::$name => $doc,)* }
            }

            /// How it is had from samples.
            pub fn kind(self) -> FigureKind {
                match self { $(Self::$name => FigureKind::$kind,)* }
            }
        }
    };
}

figures! {
    Cpu "cpu" CpuTime "% of one CPU" "CPU time of all processes, on average over the whole window";
    Memory "memory" Level "MiB" "memory that was in use during the whole window";
    Processes "processes" Level "processes and threads" "processes and threads that were there during the whole window";
    Forks "forks" Count "processes and threads" "processes and threads that were started; where the sandbox has a pid namespace";
    Overwrites "overwrites" Count "files" "files of the workspace that were there before and are now what looks encrypted, or gone with `NAME.something` beside them";
    Removals "removals" Count "files" "files of the workspace that were there before and were removed";
    ProtectedNames "protected-names" Count "names" "protected names of the workspace that were made or changed";
    Connections "connections" Count "connections" "connections that were begun";
    RefusedConnections "refused-connections" Count "connections" "connections that were refused by rules, or found no way out";
    Hosts "hosts" Count "hosts" "hosts that were connected to for the first time, refused ones included";
    RefusedNames "refused-names" Count "questions" "questions for names that no rule allows";
    GeneratedNames "generated-names" Count "names" "questions for long names that look like data: much entropy, or more than 120 bytes";
    Sent "sent" Count "KiB" "what was sent on connections, at the latest when one ends";
    RefusedCalls "refused-calls" Count "system calls" "system calls that the filter refused";
    Credentials "credentials" Count "attempts" "attempts to get at credentials that show outside: refused connections to metadata services of clouds, questions for their names, and refused calls that read keyrings or other processes";
    Miners "miners" Count "connections" "connections to ports of mining pools, or whose first bytes are a miner's";
}

impl MonitorFigure {
    /// Their words, for a message.
    pub fn words() -> String {
        let words: Vec<&str> = Self::ALL.iter().map(|figure| figure.word()).collect();
        words.join(", ")
    }
}

impl fmt::Display for MonitorFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for MonitorFigure {
    type Err = MonitorRuleError;

    fn from_str(word: &str) -> Result<Self, MonitorRuleError> {
        let found = Self::ALL.iter().copied().find(|figure| figure.word() == word);
        found.ok_or_else(|| MonitorRuleError::Figure(word.to_owned()))
    }
}
