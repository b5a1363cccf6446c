//! The one function of glibc's library of mathematics that a dependency uses, to say how fast a spinner
//! turns. With one of our own, the program does not load that library each time it starts.

/// As pow(3) has it.
// SAFETY: it has the name, the parameters and the meaning of the function that it stands for.
#[unsafe(no_mangle)]
extern "C" fn pow(base: f64, exponent: f64) -> f64 {
    libm::pow(base, exponent)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_a_power_is_made_with() {
        let (base, exponent) = (std::hint::black_box(0.1_f64), std::hint::black_box(2.5_f64));
        assert!((base.powf(exponent) - 0.003_162_277_660_168_379).abs() < 1e-15);
        assert!((super::pow(2.0, -3.0) - 0.125).abs() < f64::EPSILON);
    }
}
