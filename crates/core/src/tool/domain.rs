//! Whether one condition implies another, as far as that can be proved: what a parameter can be is narrowed down by each
//! comparison, and the wider comparison is looked at with what is left.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::constraint::{Comparison, Constraint, ParameterPath, Requirement, Scalar, is_beneath};
use super::decimal::Decimal;

/// Most alternatives that a condition is taken apart into; one with more is not proved to be any narrower.
const MAX_ALTERNATIVES: usize = 256;

/// Whether every call that passes `narrow` passes `wide`. `false` also means that it was not proved.
pub(super) fn implies(narrow: &Constraint, wide: &Constraint) -> bool {
    let Some(alternatives) = alternatives(narrow) else {
        return false;
    };
    alternatives.iter().all(|requirements| {
        let mut domains: BTreeMap<&ParameterPath, Domain<'_>> = BTreeMap::new();
        for requirement in requirements {
            domains
                .entry(&requirement.parameter)
                .or_default()
                .narrow(&requirement.comparison);
        }
        // Nothing passes this one, so there is nothing to prove.
        domains.values().any(Domain::is_empty) || is_met(wide, &domains)
    })
}

/// The same condition as a list of lists of requirements: one list has to be met in full.
fn alternatives(constraint: &Constraint) -> Option<Vec<Vec<&Requirement>>> {
    let all = match constraint {
        Constraint::Always => vec![Vec::new()],
        Constraint::One(requirement) => vec![vec![requirement]],
        Constraint::Any(parts) => {
            let parts: Option<Vec<_>> = parts.iter().map(alternatives).collect();
            parts?.concat()
        }
        Constraint::All(parts) => {
            let mut product = vec![Vec::new()];
            for part in parts {
                let part = alternatives(part)?;
                if product.len() * part.len() > MAX_ALTERNATIVES {
                    return None;
                }
                let joined = product.iter().flat_map(|before: &Vec<&Requirement>| {
                    part.iter()
                        .map(move |after| [before.as_slice(), after.as_slice()].concat())
                });
                product = joined.collect();
            }
            product
        }
    };
    (all.len() <= MAX_ALTERNATIVES).then_some(all)
}

fn is_met(wide: &Constraint, domains: &BTreeMap<&ParameterPath, Domain<'_>>) -> bool {
    match wide {
        Constraint::Always => true,
        Constraint::One(requirement) => domains
            .get(&requirement.parameter)
            .is_some_and(|domain| domain.lies_within(&requirement.comparison)),
        Constraint::All(parts) => parts.iter().all(|part| is_met(part, domains)),
        Constraint::Any(parts) => parts.iter().any(|part| is_met(part, domains)),
    }
}

/// What a parameter can be that has passed some comparisons. That it is there and not null is known of each.
#[derive(Debug, Default)]
struct Domain<'a> {
    comparisons: Vec<&'a Comparison>,
    /// The values that it can have, where they can be listed.
    listed: Option<Vec<&'a Scalar>>,
}

impl<'a> Domain<'a> {
    fn narrow(&mut self, comparison: &'a Comparison) {
        if let Comparison::OneOf(values) = comparison {
            self.listed = Some(match self.listed.take() {
                Some(before) => before.into_iter().filter(|value| values.contains(value)).collect(),
                None => values.iter().collect(),
            });
        }
        self.comparisons.push(comparison);
        if let Some(listed) = &mut self.listed {
            listed.retain(|value| self.comparisons.iter().all(|comparison| comparison.is_met_by(value)));
        }
    }

    fn is_empty(&self) -> bool {
        self.listed.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether whatever it can be passes `wide`.
    fn lies_within(&self, wide: &Comparison) -> bool {
        if *wide == Comparison::Exists {
            return true;
        }
        if let Some(listed) = &self.listed {
            return listed.iter().all(|value| wide.is_met_by(value));
        }
        match wide {
            // A list of values lies within another only where it is known.
            Comparison::OneOf(_) | Comparison::Exists => false,
            Comparison::NoneOf(values) => {
                // It has to be a single value, and each of these has to be ruled out by something.
                self.is_scalar()
                    && values.iter().all(|value| {
                        let mut known = self.comparisons.iter();
                        known.any(|comparison| !comparison.is_met_by(value))
                    })
            }
            other => self.comparisons.iter().any(|comparison| is_within(comparison, other)),
        }
    }

    /// Whether it is a number, a string or a truth value: whatever has passed another comparison than `exists` is.
    fn is_scalar(&self) -> bool {
        self.comparisons
            .iter()
            .any(|comparison| **comparison != Comparison::Exists)
    }
}

/// Whether what passes `narrow` passes `wide`, of two that bound numbers or strings.
fn is_within(narrow: &Comparison, wide: &Comparison) -> bool {
    use Comparison::{Above, AtLeast, AtMost, Below, Beneath, Prefix};
    let up_to = |inner: &Decimal, outer: &Decimal, equal: bool| match inner.cmp(outer) {
        Ordering::Less => true,
        Ordering::Equal => equal,
        Ordering::Greater => false,
    };
    match (narrow, wide) {
        (Below(inner), Below(outer) | AtMost(outer)) | (AtMost(inner), AtMost(outer)) => up_to(inner, outer, true),
        (AtMost(inner), Below(outer)) => up_to(inner, outer, false),
        (Above(inner), Above(outer) | AtLeast(outer)) | (AtLeast(inner), AtLeast(outer)) => up_to(outer, inner, true),
        (AtLeast(inner), Above(outer)) => up_to(outer, inner, false),
        (Prefix(inner), Prefix(outer)) => inner.starts_with(outer.as_str()),
        (Beneath(inner), Beneath(outer)) => is_beneath(inner, outer),
        (Beneath(inner), Prefix(outer)) => inner.trim_end_matches('/').starts_with(outer.as_str()),
        _ => false,
    }
}
