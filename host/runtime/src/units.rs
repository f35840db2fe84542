//! Durations and sizes as people write them: `"1500ms"`, `"10s"`, `"2m"`; `67108864`, `"64MiB"`.

/// Durations as text with a unit.
pub(crate) mod duration {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    pub(crate) fn serialize<S: Serializer>(
        value: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is no duration above zero: write `1500ms`, `10s` or `2m`"
            ))
        })
    }

    /// The shortest exact form.
    pub(crate) fn text(value: Duration) -> String {
        let ms = value.as_millis();
        match ms {
            _ if ms > 0 && ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
            _ if ms > 0 && ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
            _ => format!("{ms}ms"),
        }
    }

    pub(super) fn parse(text: &str) -> Option<Duration> {
        let text = text.trim();
        let (number, unit_ms) = [("ms", 1.0), ("s", 1e3), ("m", 6e4), ("h", 3.6e6)]
            .iter()
            .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))?;
        let ms = number.trim().parse::<f64>().ok()? * unit_ms;
        (1.0..1e15)
            .contains(&ms)
            .then(|| Duration::from_micros((ms * 1e3) as u64))
    }
}

/// Sizes as a number of bytes or as text with a unit.
pub(crate) mod bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(bytes),
            Written::Text(text) => parse(&text).ok_or_else(|| {
                D::Error::custom(format!(
                    "`{text}` is no size: write `65536`, `64KiB`, `16MiB` or `1GiB`"
                ))
            }),
        }
    }

    /// With the largest unit that fits, to one decimal.
    pub(crate) fn text(bytes: u64) -> String {
        let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(size, _)| bytes >= *size) {
            Some((size, unit)) if bytes.is_multiple_of(*size) => format!("{} {unit}", bytes / size),
            Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / *size as f64),
            None => format!("{bytes} bytes"),
        }
    }

    pub(super) fn parse(text: &str) -> Option<u64> {
        let text = text.trim();
        let (number, unit) = [
            ("GiB", 1u64 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
            ("B", 1),
            ("", 1),
        ]
        .iter()
        .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, size)))?;
        number.trim().parse::<u64>().ok()?.checked_mul(*unit)
    }
}

/// [`bytes`], or nothing.
pub(crate) mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize, Serialize)]
    struct Size(#[serde(with = "super::bytes")] u64);

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(Size).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        Ok(Option::<Size>::deserialize(deserializer)?.map(|size| size.0))
    }
}

#[cfg(test)]
mod tests {
    use crate::Limits;
    use std::time::Duration;

    #[test]
    fn limits_are_read_as_people_write_them() {
        let text = r#"{"cpu": "50ms", "wall": "1.5s", "rollout_wall": "2m", "memory_bytes": "64MiB", "hostcall_bytes": 4096}"#;
        let limits: Limits = serde_json::from_str(text).unwrap();
        assert_eq!(limits.cpu, Duration::from_millis(50));
        assert_eq!(limits.wall, Duration::from_millis(1500));
        assert_eq!(limits.rollout_wall, Duration::from_secs(120));
        assert_eq!(
            (limits.memory_bytes, limits.hostcall_bytes),
            (64 << 20, 4096)
        );
        assert_eq!(limits.tokens, Limits::default().tokens);
        let again: Limits = serde_json::from_str(&serde_json::to_string(&limits).unwrap()).unwrap();
        assert_eq!(again, limits);
    }

    #[test]
    fn what_has_no_unit_or_no_meaning_is_refused_with_the_right_form() {
        for (text, cure) in [
            (r#"{"cpu": "50"}"#, "write `1500ms`"),
            (r#"{"cpu": "0s"}"#, "above zero"),
            (r#"{"cpu": "-1s"}"#, "above zero"),
            (r#"{"memory_bytes": "64 megs"}"#, "write `65536`"),
            (r#"{"memory": 5}"#, "memory_bytes"),
        ] {
            let error = serde_json::from_str::<Limits>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(cure), "{text}: {error}");
        }
    }
}
