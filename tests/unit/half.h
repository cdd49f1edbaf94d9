#ifndef BPS_TESTS_HALF_H
#define BPS_TESTS_HALF_H
/* Half-precision numbers (IEEE binary16) computed with doubles. Tests use them as a reference,
 * because some compilers lack a half-precision type. The functions accept only finite numbers
 * within the range of binary16. */
#include <math.h>
#include <stdint.h>

static inline double half_value(uint16_t h)
{
	int exponent = h >> 10 & 31, fraction = h & 1023;
	double v = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);

	return h >> 15 ? -v : v;
}

/* Round to the nearest number. If two numbers are equally near, choose the even one, as rint
 * does. */
static inline uint16_t half_round(double v)
{
	uint16_t sign = signbit(v) ? 0x8000 : 0;
	int exponent;
	double units;

	v = fabs(v);
	frexp(v, &exponent); /* v is less than 2^exponent */
	if (v == 0 || exponent < -13)
		exponent = -13;
	units = rint(ldexp(v, 11 - exponent)); /* 1024 to 2048, or less for a subnormal number */
	return (uint16_t)(sign + (((exponent + 13) << 10) + (int)units));
}
#endif
