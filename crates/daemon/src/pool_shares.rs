//! How the places of the warm pool are divided between templates.
//!
//! Pure: no clock, no queues. [`pool`](super::pool) is the only caller.

/// What one template would have if there were no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolWish {
    /// How many it has before anybody has more; at most `want`.
    pub(crate) least: usize,
    /// How many it could use.
    pub(crate) want: usize,
}

/// Divides `places`: whoever has fewest gets the next one, until nobody wants more or none is left.
///
/// So a template that is asked for a lot takes no place from one that has fewer, and what one does not want the others
/// get. The least of each comes first; of those, too, none gets a second one before every other has its first.
pub(crate) fn shares(places: usize, wishes: &[PoolWish]) -> Vec<usize> {
    let mut given = vec![0; wishes.len()];
    let mut left = places;
    let least: Vec<usize> = wishes.iter().map(|wish| wish.least).collect();
    let want: Vec<usize> = wishes.iter().map(|wish| wish.want).collect();
    for up_to in [least, want] {
        while left > 0 {
            let hungry = given.iter_mut().zip(&up_to).filter(|(have, most)| **have < **most);
            let Some((have, _)) = hungry.min_by_key(|(have, _)| **have) else {
                break;
            };
            *have += 1;
            left -= 1;
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(places: usize, wishes: &[(usize, usize)]) -> Vec<usize> {
        let wishes: Vec<PoolWish> = wishes.iter().map(|&(least, want)| PoolWish { least, want }).collect();
        shares(places, &wishes)
    }

    #[test]
    fn everybody_has_what_they_want_where_there_is_enough() {
        assert_eq!(divided(10, &[(2, 5), (0, 3), (0, 0)]), [5, 3, 0]);
        assert_eq!(divided(10, &[]), [0; 0]);
    }

    #[test]
    fn who_wants_much_takes_nothing_from_who_wants_little() {
        assert_eq!(divided(8, &[(0, 100), (0, 2), (0, 1)]), [5, 2, 1]);
        assert_eq!(divided(9, &[(0, 100), (0, 100), (0, 100)]), [3, 3, 3]);
        let many = vec![(0, 100); 50];
        let shares = divided(32, &many);
        assert_eq!(shares.iter().sum::<usize>(), 32);
        assert!(shares.iter().all(|share| *share <= 1));
    }

    #[test]
    fn the_least_comes_first_and_never_more_than_there_is() {
        assert_eq!(divided(5, &[(4, 4), (0, 100)]), [4, 1]);
        assert_eq!(divided(3, &[(4, 4), (4, 4), (0, 9)]), [2, 1, 0]);
        assert_eq!(divided(0, &[(1, 1)]), [0]);
    }
}
