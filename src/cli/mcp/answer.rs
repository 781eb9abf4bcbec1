//! The size of a tool's answer: an assistant has to read all of it, so lists are cut.

use serde_json::Value;

use crate::cli::failure::Failure;

/// Maximum size of an answer in bytes, about 20,000 tokens. Assistants accept 25,000 or more per
/// answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// An answer as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ToolAnswer {
    pub(super) json: String,
    /// Description of the items that were left out.
    pub(super) note: Option<String>,
}

/// Returns an answer of at most [`ANSWER_BYTES_MAX`]. The last items of its largest lists are left
/// out if it would be larger.
pub(super) fn limit(mut answer: Value) -> Result<ToolAnswer, Failure> {
    let mut json = answer.to_string();
    let bytes = json.len();
    let mut cuts = Vec::new();
    while json.len() > ANSWER_BYTES_MAX {
        let excess = json.len() - ANSWER_BYTES_MAX;
        let cut = cut_largest_list(&mut answer, excess);
        let too_large = || format!("the answer has {} KiB, more than {}: ask for less", bytes >> 10, ANSWER_BYTES_MAX >> 10);
        cuts.push(cut.ok_or_else(|| Failure::new(too_large()))?);
        json = answer.to_string();
    }
    let note = (!cuts.is_empty()).then(|| {
        format!(
            "This answer was cut, because it had {} KiB and the maximum is {} KiB. {}. Ask for less: a smaller limit, or a filter.",
            bytes >> 10,
            ANSWER_BYTES_MAX >> 10,
            cuts.join("; ")
        )
    });
    Ok(ToolAnswer { json, note })
}

/// Removes the last items of the largest list of an object, until they have `excess` bytes or none
/// is left. Returns a description, or `None` if no list has an item.
fn cut_largest_list(answer: &mut Value, excess: usize) -> Option<String> {
    let members = answer.as_object_mut()?;
    let lists = members.iter_mut().filter_map(|(name, value)| value.as_array_mut().map(|items| (name, items)));
    let sizes = lists.filter(|(_, items)| !items.is_empty()).map(|(name, items)| {
        let sizes: Vec<usize> = items.iter().map(|item| item.to_string().len()).collect();
        (name, items, sizes)
    });
    let (name, items, sizes) = sizes.max_by_key(|(_, _, sizes)| sizes.iter().sum::<usize>())?;
    let (total, mut removed) = (items.len(), 0);
    while let Some(size) = sizes[..items.len()].last().filter(|_| removed < excess) {
        removed += size + ",".len();
        items.pop();
    }
    let description = format!("{name} has only the first {} of {total} items", items.len());
    // the next page would begin after the removed items
    members.remove("nextPageToken");
    Some(description)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_small_answer_stays_as_it_is() {
        let answer = json!({"items": [1, 2], "nextPageToken": "3"});
        assert_eq!(limit(answer.clone()).unwrap(), ToolAnswer { json: answer.to_string(), note: None });
    }

    #[test]
    fn the_largest_list_of_a_large_answer_is_cut() {
        let items: Vec<Value> = (0..2_000).map(|number| json!({"number": number, "text": "x".repeat(100)})).collect();
        let answer = limit(json!({"items": items, "gaps": [1], "meta": {"ageSeconds": 1}, "nextPageToken": "t"})).unwrap();
        let cut: Value = serde_json::from_str(&answer.json).unwrap();
        let count = cut["items"].as_array().unwrap().len();
        assert!((ANSWER_BYTES_MAX - 200..=ANSWER_BYTES_MAX).contains(&answer.json.len()), "{}", answer.json.len());
        assert_eq!(cut["items"][count - 1]["number"], count - 1);
        assert_eq!((&cut["gaps"], &cut["meta"]["ageSeconds"], &cut["nextPageToken"]), (&json!([1]), &json!(1), &Value::Null));
        let note = answer.note.unwrap();
        assert!(note.contains(&format!("items has only the first {count} of 2000 items")), "{note}");
    }

    #[test]
    fn several_lists_are_cut_if_one_is_not_enough() {
        let long = || json!(["x".repeat(40 << 10), "y".repeat(40 << 10)]);
        let answer = limit(json!({"entries": long(), "services": long()})).unwrap();
        assert!(answer.json.len() <= ANSWER_BYTES_MAX, "{}", answer.json.len());
        assert!(answer.note.unwrap().contains("; "));
    }

    #[test]
    fn a_large_answer_without_lists_is_refused() {
        let error = limit(json!({"value": "x".repeat(100 << 10)})).unwrap_err();
        assert_eq!(error.to_string(), "the answer has 100 KiB, more than 64: ask for less");
    }
}
