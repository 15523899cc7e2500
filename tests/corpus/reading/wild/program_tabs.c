int main(void)
{
	int a = 1;	int b = 2;
	a = f(1, 2);	b = a;
	return a;
}
