const a = [1,2];
const b = f(a,2);
const c = g(b,3);
