//! What the machine says of its processors, cut down to those that a sandbox may use.

/// Processors as the kernel lists them: `0-1,3`; they are in order.
pub(crate) fn cpu_list(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let range = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// `/proc/cpuinfo` of these processors alone; a part without a number stays.
pub(crate) fn cpuinfo_of(text: &str, cpus: &[usize]) -> String {
    let number = |part: &str| {
        let line = part.lines().find(|line| line.starts_with("processor"))?;
        line.split_once(':')?.1.trim().parse::<usize>().ok()
    };
    let parts = text.split("\n\n").filter(|part| !part.trim().is_empty());
    let kept = parts.filter(|part| number(part).is_none_or(|number| cpus.contains(&number)));
    kept.map(|part| format!("{}\n\n", part.trim_matches('\n'))).collect()
}

/// `/proc/stat` (proc_stat(5)) of these processors alone, and without interrupts.
pub(crate) fn stat_of(text: &str, cpus: &[usize]) -> String {
    let numbers = |rest: &str| -> Vec<u64> { rest.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect() };
    let mut sums: Vec<u64> = Vec::new();
    let (mut lines, mut others) = (String::new(), String::new());
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word.strip_prefix("cpu") {
            Some("") => {}
            Some(number) if number.parse().is_ok_and(|number| cpus.contains(&number)) => {
                let values = numbers(rest);
                sums.resize(sums.len().max(values.len()), 0);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = sum.saturating_add(value);
                }
                lines.push_str(line);
                lines.push('\n');
            }
            Some(_) => {}
            None if matches!(word, "intr" | "softirq") => others.push_str(&format!("{word} 0\n")),
            None => {
                others.push_str(line);
                others.push('\n');
            }
        }
    }
    let sums: Vec<String> = sums.iter().map(u64::to_string).collect();
    format!("cpu  {}\n{lines}{others}", sums.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_listed_in_ranges() {
        for (cpus, expected) in [
            (&[][..], ""),
            (&[4], "4"),
            (&[0, 1, 2], "0-2"),
            (&[0, 2, 3, 9], "0,2-3,9"),
        ] {
            assert_eq!(cpu_list(cpus), expected);
        }
    }

    #[test]
    fn other_processors_are_left_out() {
        let text = "processor\t: 0\nmodel name\t: A\n\nprocessor\t: 1\nmodel name\t: B\n\n";
        assert_eq!(cpuinfo_of(text, &[1]), "processor\t: 1\nmodel name\t: B\n\n");
        assert_eq!(cpuinfo_of(text, &[0, 1]), text);
        assert_eq!(cpuinfo_of("", &[0]), "");
        // As other architectures end it.
        assert_eq!(cpuinfo_of("processor : 0\n\nHardware : X\n", &[1]), "Hardware : X\n\n");
    }

    #[test]
    fn times_are_those_of_the_processors_that_are_left() {
        let text = "cpu  11 22 33 44\ncpu0 1 2 3 4\ncpu1 10 20 30 40\ncpu10 5 5 5 5\nintr 9 1 2\nctxt 7\nbtime 8\n";
        let expected = "cpu  10 20 30 40\ncpu1 10 20 30 40\nintr 0\nctxt 7\nbtime 8\n";
        assert_eq!(stat_of(text, &[1]), expected);
    }
}
