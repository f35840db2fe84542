//! Quantities with a unit, as people write them: `"250ms"`, `"64MiB"`.

use std::time::Duration;

/// `10ms`, `1.5s`, `2m`, `1h`.
///
/// # Errors
/// One sentence that names the form expected.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!(
                "`{text}` is not a duration; write a number and us, ms, s, m or h, like \"250ms\""
            ));
        }
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(Duration::from_secs_f64(value * scale)),
        _ => Err(format!(
            "`{text}` is not a duration above zero; write it like \"250ms\""
        )),
    }
}

/// `512`, `64KiB`, `1.5GiB`.
///
/// # Errors
/// One sentence that names the form expected.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale = match unit {
        "" | "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => {
            return Err(format!(
                "`{text}` is not a size; write a number and B, KiB, MiB or GiB, like \"64MiB\""
            ));
        }
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok((value * scale) as u64),
        _ => Err(format!(
            "`{text}` is not a size above zero; write it like \"64MiB\""
        )),
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_their_absence_is_refused() {
        assert_eq!(duration("250ms").unwrap(), Duration::from_millis(250));
        assert_eq!(duration("1.5s").unwrap(), Duration::from_millis(1500));
        assert_eq!(bytes("64 MiB").unwrap(), 64 << 20);
        for wrong in ["10", "0s", "inf s", "-1s", "1e3s", "s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(bytes("64MB").is_err());
    }
}
