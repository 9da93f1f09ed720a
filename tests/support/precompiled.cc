// The program that precompiled.h is compiled for; it does nothing.
int main() {}
