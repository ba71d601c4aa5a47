//! Finds the name that a user most likely meant.

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to turn one word into the
/// other.
#[must_use]
pub fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.iter().enumerate() {
        let mut row = vec![index + 1];
        for (column, candidate) in other.iter().enumerate() {
            let replaced = last[column] + usize::from(letter != candidate);
            let mut least = replaced.min(last[column + 1] + 1).min(row[column] + 1);
            let is_swap =
                index > 0 && column > 0 && *letter == other[column - 1] && one[index - 1] == *candidate;
            if is_swap {
                least = least.min(before_last[column - 1] + 1);
            }
            row.push(least);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

/// The name that is close enough to be meant. Short words are similar to everything, so they allow fewer differences.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let most = (name.chars().count() / 3).clamp(1, 3);
    // A long word is not a typo of a field, and comparing it takes time.
    if name.len() > 64 {
        return None;
    }
    let nearest = known.iter().map(|known| (edit_distance(known, name), *known)).min();
    nearest.filter(|(distance, _)| *distance <= most).map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_a_typo_away() {
        let known = ["task", "steps", "timeout_s", "memory_mib"];
        for (typo, meant) in [
            ("taks", Some("task")),
            ("tasks", Some("task")),
            ("step", Some("steps")),
            ("timeout", Some("timeout_s")),
            ("memory_mb", Some("memory_mib")),
            ("colour", None),
        ] {
            assert_eq!(nearest(typo, &known), meant, "{typo}");
        }
        assert_eq!((edit_distance("", "ab"), edit_distance("kitten", "sitting")), (2, 3));
    }
}
