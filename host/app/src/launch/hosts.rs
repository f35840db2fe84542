//! Slurm's lists of nodes: `gpu[01-03,7],login1`.

/// The first node of a list.
pub fn first(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find(['[', ',']).unwrap_or(list.len());
    let (stem, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else {
        return (!stem.is_empty()).then(|| stem.to_owned());
    };
    let (inside, after) = inside.split_once(']')?;
    let number = inside.split([',', '-']).next()?;
    // What follows the bracket, up to the next node, belongs to the name: `rack[1-2]n[0-3]` begins at `rack1n0`.
    let tail = after.split(',').next().unwrap_or_default();
    Some(format!(
        "{stem}{number}{}",
        if tail.is_empty() {
            String::new()
        } else {
            first(tail)?
        }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_of_every_way_to_write_a_list_is_found() {
        for (list, node) in [
            ("node1", "node1"),
            ("node1,node3", "node1"),
            ("node[1-3]", "node1"),
            ("node[1,3]", "node1"),
            ("gpu[007-012,20],login1", "gpu007"),
            ("rack[1-2]n[0-3]", "rack1n0"),
            ("a,b[1-2]", "a"),
        ] {
            assert_eq!(first(list).as_deref(), Some(node), "{list}");
        }
        assert_eq!(first(""), None);
    }
}
